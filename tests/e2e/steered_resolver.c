// SPDX-License-Identifier: MIT
//
// A getaddrinfo that a test steers, to be loaded in front of the C library's (LD_PRELOAD).
//
// Hosts whose name ends in ".test" are answered from the file that $STEERED_RESOLVER names, read anew at each
// call: numeric addresses separated by blanks, or the word "hang", which is waited out, or "fail". Each call
// appends a line to that path with ".calls" behind it. Other hosts go to the C library.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int (*Getaddrinfo)(const char*, const char*, const struct addrinfo*, struct addrinfo**);

static void read_orders(char* text, size_t size) {
  FILE* file = fopen(getenv("STEERED_RESOLVER"), "r");
  size_t length = file ? fread(text, 1, size - 1, file) : 0;
  text[length] = '\0';
  if (file) fclose(file);
}

static void note_call(void) {
  char path[4096];
  snprintf(path, sizeof path, "%s.calls", getenv("STEERED_RESOLVER"));
  FILE* file = fopen(path, "a");
  if (!file) return;
  fputs("call\n", file);
  fclose(file);
}

int getaddrinfo(const char* host, const char* port, const struct addrinfo* hints, struct addrinfo** found) {
  Getaddrinfo real = (Getaddrinfo)dlsym(RTLD_NEXT, "getaddrinfo");
  const char* ending = host ? strrchr(host, '.') : NULL;
  if (!ending || strcmp(ending, ".test") != 0 || !getenv("STEERED_RESOLVER")) {
    return real(host, port, hints, found);
  }
  note_call();
  char orders[1024];
  for (read_orders(orders, sizeof orders); strstr(orders, "hang"); read_orders(orders, sizeof orders)) {
    usleep(10 * 1000);
  }
  // Freed node by node by the C library, so lists may be joined.
  struct addrinfo** end = found;
  *found = NULL;
  char* rest = NULL;
  for (char* word = strtok_r(orders, " \n", &rest); word; word = strtok_r(NULL, " \n", &rest)) {
    if (strcmp(word, "fail") == 0 || real(word, port, hints, end) != 0) break;
    while (*end) end = &(*end)->ai_next;
  }
  return *found ? 0 : EAI_AGAIN;
}
