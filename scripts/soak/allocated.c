/* Loaded before glibc (LD_PRELOAD): once a second writes how many bytes the process has allocated, and how many the allocator has
   taken from the system, into the file that SOAK_ALLOCATED names. Processes that it starts are left alone. */
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static char path[4096];

static void *watch(void *unused) {
  char next[4100];
  snprintf(next, sizeof next, "%s.new", path);
  for (;; sleep(1)) {
    struct mallinfo2 now = mallinfo2();
    FILE *file = fopen(next, "w");
    if (!file)
      return unused;
    fprintf(file, "%zu %zu\n", now.uordblks + now.hblkhd, now.arena + now.hblkhd);
    fclose(file);
    rename(next, path);
  }
}

__attribute__((constructor)) static void start(void) {
  const char *name = getenv("SOAK_ALLOCATED");
  pthread_t thread;
  if (!name)
    return;
  snprintf(path, sizeof path, "%s", name);
  unsetenv("SOAK_ALLOCATED");
  unsetenv("LD_PRELOAD");
  if (pthread_create(&thread, NULL, watch, NULL) == 0)
    pthread_detach(thread);
}
