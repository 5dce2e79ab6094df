/* Loaded before libc (LD_PRELOAD): writes down what a process does to its files, so that a test can cut the power.
 *
 * POWER_JOURNAL gets a record for each write, truncation, removal and sync, in the order in which the kernel saw them. A
 * sync has two records: what was written before the first is on disk when the second is there. Recorded are
 * POWER_DATABASE, an SQLite file, with its -wal; and the files in POWER_FOLDER, with their names and the folder's syncs.
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

enum { NONE, DATABASE, WAL, FOLDER, FIRST };

struct __attribute__((packed)) record {
    char action; /* write, truncate, remove, begin of a sync, end of a sync, make a file, rename it */
    uint16_t file;
    int64_t at;
    int64_t size;
};

#define FILES 4096

static uint16_t file_of[DESCRIPTORS];
static char *names[FILES]; /* of the files in the folder */
static int journal = -1;
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static const char *in_folder(const char *path) {
    const char *folder = getenv("POWER_FOLDER");
    size_t length = folder ? strlen(folder) : 0;
    if (!length || strncmp(path, folder, length)) return NULL;
    return path[length] == '/' ? path + length + 1 : path[length] == 0 ? "" : NULL;
}

static uint16_t which(const char *path) {
    const char *name = in_folder(path);
    if (name && !*name) return FOLDER;
    for (uint16_t file = FIRST; name && file < FILES; file++)
        if (names[file] && !strcmp(names[file], name)) return file;
    const char *database = getenv("POWER_DATABASE");
    size_t length = database ? strlen(database) : 0;
    if (!length || strncmp(path, database, length)) return NONE;
    if (path[length] == 0) return DATABASE;
    return strcmp(path + length, "-wal") ? NONE : WAL;
}

static void append(char action, uint16_t file, int64_t at, const void *data, int64_t size) {
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

static uint16_t watched(int descriptor) {
    return descriptor >= 0 && descriptor < DESCRIPTORS ? file_of[descriptor] : NONE;
}

static void make_file(const char *path) {
    const char *name = in_folder(path);
    if (!name || !*name || which(path)) return;
    uint16_t file = FIRST;
    while (file < FILES && names[file]) file++;
    if (file == FILES) abort();
    names[file] = strdup(name);
    append('m', file, 0, name, strlen(name));
}

static int opened(int descriptor, const char *path, int flags) {
    if (descriptor >= 0 && flags & O_CREAT) {
        pthread_mutex_lock(&turn);
        make_file(path);
        pthread_mutex_unlock(&turn);
    }
    if (descriptor >= 0 && descriptor < DESCRIPTORS) file_of[descriptor] = which(path);
    return descriptor;
}

#define OPEN(name)                                                            \
    int name(const char *path, int flags, ...) {                              \
        va_list more;                                                         \
        va_start(more, flags);                                                \
        mode_t mode = flags & O_CREAT ? va_arg(more, mode_t) : 0;             \
        va_end(more);                                                         \
        return opened(NEXT(int (*)(const char *, int, ...), #name)(path, flags, mode), path, flags); \
    }
OPEN(open)
OPEN(open64)

int close(int descriptor) {
    if (descriptor >= 0 && descriptor < DESCRIPTORS) file_of[descriptor] = NONE;
    return NEXT(int (*)(int), "close")(descriptor);
}

#define PWRITE(name)                                                          \
    ssize_t name(int descriptor, const void *data, size_t size, off_t at) {   \
        uint16_t file = watched(descriptor);                                   \
        if (file) pthread_mutex_lock(&turn);                                  \
        ssize_t done = NEXT(ssize_t (*)(int, const void *, size_t, off_t), #name)(descriptor, data, size, at); \
        if (file && done > 0) append('w', file, at, data, done);              \
        if (file) pthread_mutex_unlock(&turn);                                \
        return done;                                                          \
    }
PWRITE(pwrite)
PWRITE(pwrite64)

ssize_t write(int descriptor, const void *data, size_t size) {
    uint16_t file = watched(descriptor);
    if (file) pthread_mutex_lock(&turn);
    ssize_t done = NEXT(ssize_t (*)(int, const void *, size_t), "write")(descriptor, data, size);
    if (file && done > 0) append('w', file, lseek(descriptor, 0, SEEK_CUR) - done, data, done);
    if (file) pthread_mutex_unlock(&turn);
    return done;
}

#define FTRUNCATE(name)                                                       \
    int name(int descriptor, off_t size) {                                    \
        uint16_t file = watched(descriptor);                                   \
        if (file) pthread_mutex_lock(&turn);                                  \
        int failed = NEXT(int (*)(int, off_t), #name)(descriptor, size);      \
        if (file && !failed) append('t', file, size, NULL, 0);                \
        if (file) pthread_mutex_unlock(&turn);                                \
        return failed;                                                        \
    }
FTRUNCATE(ftruncate)
FTRUNCATE(ftruncate64)

static void note_sync(char action, uint16_t file) {
    pthread_mutex_lock(&turn);
    append(action, file, 0, NULL, 0);
    pthread_mutex_unlock(&turn);
}

#define SYNC(name)                                                            \
    int name(int descriptor) {                                                \
        uint16_t file = watched(descriptor);                                   \
        if (file) note_sync('b', file);                                       \
        int failed = NEXT(int (*)(int), #name)(descriptor);                   \
        if (file && !failed) note_sync('e', file);                            \
        return failed;                                                        \
    }
SYNC(fsync)
SYNC(fdatasync)

int unlink(const char *path) {
    uint16_t file = which(path);
    int failed = NEXT(int (*)(const char *), "unlink")(path);
    if (file && !failed) note_sync('r', file);
    if (file >= FIRST && !failed) names[file] = NULL;
    return failed;
}

int rename(const char *path, const char *to) {
    uint16_t file = which(path);
    const char *name = in_folder(to);
    pthread_mutex_lock(&turn);
    int failed = NEXT(int (*)(const char *, const char *), "rename")(path, to);
    if (file >= FIRST && name && !failed) {
        names[file] = strdup(name);
        append('n', file, 0, name, strlen(name));
    }
    pthread_mutex_unlock(&turn);
    return failed;
}
