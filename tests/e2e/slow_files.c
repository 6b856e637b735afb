// SPDX-License-Identifier: MIT
//
// An fopen that takes its time, to be loaded in front of the C library's (LD_PRELOAD): that of the file which
// $SLOW_FILE names takes $SLOW_FILE_MS, and appends a line to that path with ".opened" behind it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef FILE* (*Open)(const char*, const char*);

static FILE* open_with(const char* name, const char* path, const char* mode) {
  Open real = (Open)dlsym(RTLD_NEXT, name);
  const char* slow = getenv("SLOW_FILE");
  const char* delay = getenv("SLOW_FILE_MS");
  if (!path || !slow || !delay || strcmp(path, slow) != 0) return real(path, mode);
  usleep(1000 * (useconds_t)atoi(delay));
  char note[4096];
  snprintf(note, sizeof note, "%s.opened", slow);
  FILE* noted = real(note, "a");
  if (noted) {
    fputs("opened\n", noted);
    fclose(noted);
  }
  return real(path, mode);
}

FILE* fopen(const char* path, const char* mode) { return open_with("fopen", path, mode); }
FILE* fopen64(const char* path, const char* mode) { return open_with("fopen64", path, mode); }
