/* Loaded before libc (LD_PRELOAD): writes down what a process does to an SQLite file, so that a test can cut the power.
 *
 * POWER_DATABASE is the file, POWER_JOURNAL gets a record for each write, truncation, removal and sync of it and of its
 * -wal, in the order in which the kernel saw them. A sync has two records: what was written before the first is on disk
 * when the second is there.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#define DESCRIPTORS 4096
#define NEXT(type, name) ((type)dlsym(RTLD_NEXT, name))

enum { NONE, DATABASE, WAL };

struct __attribute__((packed)) record {
    char action; /* write, truncate, remove, begin of a sync, end of a sync */
    uint8_t file;
    int64_t at;
    int64_t size;
};

static uint8_t file_of[DESCRIPTORS];
static int journal = -1;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static uint8_t which(const char *path) {
    const char *database = getenv("POWER_DATABASE");
    size_t length = database ? strlen(database) : 0;
    if (!length || strncmp(path, database, length)) return NONE;
    if (path[length] == 0) return DATABASE;
    return strcmp(path + length, "-wal") ? NONE : WAL;
}

static void append(char action, uint8_t file, int64_t at, const void *data, int64_t size) {
    struct record head = {action, file, at, size};
    if (journal < 0) {
        int (*real)(const char *, int, ...) = NEXT(int (*)(const char *, int, ...), "open");
        journal = real(getenv("POWER_JOURNAL"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    }
    char *whole = malloc(sizeof head + (data ? size : 0));
    memcpy(whole, &head, sizeof head);
    if (data) memcpy(whole + sizeof head, data, size);
    if (write(journal, whole, sizeof head + (data ? size : 0)) < 0) abort();
    free(whole);
}

static uint8_t watched(int descriptor) {
    return descriptor >= 0 && descriptor < DESCRIPTORS ? file_of[descriptor] : NONE;
}

static int opened(int descriptor, const char *path) {
    if (descriptor >= 0 && descriptor < DESCRIPTORS) file_of[descriptor] = which(path);
    return descriptor;
}

#define OPEN(name)                                                            \
    int name(const char *path, int flags, ...) {                              \
        va_list more;                                                         \
        va_start(more, flags);                                                \
        mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;             \
        va_end(more);                                                         \
        return opened(NEXT(int (*)(const char *, int, ...), #name)(path, flags, mode), path); \
    }
OPEN(open)
OPEN(open64)

int close(int descriptor) {
    if (descriptor >= 0 && descriptor < DESCRIPTORS) file_of[descriptor] = NONE;
    return NEXT(int (*)(int), "close")(descriptor);
}

#define PWRITE(name)                                                          \
    ssize_t name(int descriptor, const void *data, size_t size, off_t at) {   \
        uint8_t file = watched(descriptor);                                   \
        if (file) pthread_mutex_lock(&turn);                                  \
        ssize_t done = NEXT(ssize_t (*)(int, const void *, size_t, off_t), #name)(descriptor, data, size, at); \
        if (file && done > 0) append('w', file, at, data, done);              \
        if (file) pthread_mutex_unlock(&turn);                                \
        return done;                                                          \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

#define FTRUNCATE(name)                                                       \
    int name(int descriptor, off_t size) {                                    \
        uint8_t file = watched(descriptor);                                   \
        if (file) pthread_mutex_lock(&turn);                                  \
        int failed = NEXT(int (*)(int, off_t), #name)(descriptor, size);      \
        if (file && !failed) append('t', file, size, NULL, 0);                \
        if (file) pthread_mutex_unlock(&turn);                                \
        return failed;                                                        \
    }
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)

static void note_sync(char action, uint8_t file) {
    pthread_mutex_lock(&turn);
    append(action, file, 0, NULL, 0);
    pthread_mutex_unlock(&turn);
}

#define SYNC(name)                                                            \
    int name(int descriptor) {                                                \
        uint8_t file = watched(descriptor);                                   \
        if (file) note_sync('b', file);                                       \
        int failed = NEXT(int (*)(int), #name)(descriptor);                   \
        if (file && !failed) note_sync('e', file);                            \
        return failed;                                                        \
    }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
    uint8_t file = which(path);
    int failed = NEXT(int (*)(const char *), "unlink")(path);
    if (file && !failed) note_sync('r', file);
    return failed;
}
