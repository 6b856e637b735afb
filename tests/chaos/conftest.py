# SPDX-License-Identifier: MIT
"""Finds the helpers of the end-to-end tests."""

from __future__ import annotations

import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(_HERE), str(_HERE.parent / "e2e")]
