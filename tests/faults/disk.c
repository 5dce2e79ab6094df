/* Loaded before libc (LD_PRELOAD): a disk that is full, or that fails at the next sync. The file DISK_FAULT has
 * three int64: whether the disk is full, how many syncs are to fail, and how many writes found it full. The first two may
 * change at any moment. Only regular files are affected, and not the first three descriptors. A full disk still takes what
 * replaces other content. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static volatile int64_t *fault(void) {
    static volatile int64_t *shared;
    if (!shared) {
        int file = open(getenv("DISK_FAULT"), O_RDWR | O_CLOEXEC);
        void *mapped = mmap(NULL, 3 * sizeof(int64_t), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
        if (mapped == MAP_FAILED) abort();
        close(file);
        shared = mapped;
    }
    return shared;
}

static int is_full(int file, off_t end) {
    struct stat known;
    if (file <= 2 || !fault()[0] || fstat(file, &known) || !S_ISREG(known.st_mode) || end <= known.st_size) return 0;
    __atomic_fetch_add(&fault()[2], 1, __ATOMIC_SEQ_CST);
    errno = ENOSPC;
    return 1;
}

static off_t position(int file) {
    int kept = errno;
    off_t at = fcntl(file, F_GETFL) & O_APPEND ? lseek(file, 0, SEEK_END) : lseek(file, 0, SEEK_CUR);
    errno = kept;
    return at;
}

static off_t length(const struct iovec *parts, int count) {
    off_t sum = 0;
    for (int i = 0; i < count; i++) sum += parts[i].iov_len;
    return sum;
}

ssize_t write(int file, const void *data, size_t size) {
    if (file > 2 && fault()[0] && is_full(file, position(file) + size)) return -1;
    return REAL(write)(file, data, size);
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    if (file > 2 && fault()[0] && is_full(file, position(file) + length(parts, count))) return -1;
    return REAL(writev)(file, parts, count);
}

ssize_t pwrite(int file, const void *data, size_t size, off_t at) {
    return is_full(file, at + size) ? -1 : REAL(pwrite)(file, data, size, at);
}

ssize_t pwrite64(int file, const void *data, size_t size, off64_t at) {
    return is_full(file, at + size) ? -1 : REAL(pwrite64)(file, data, size, at);
}

ssize_t pwritev(int file, const struct iovec *parts, int count, off_t at) {
    return is_full(file, at + length(parts, count)) ? -1 : REAL(pwritev)(file, parts, count, at);
}

ssize_t pwritev64(int file, const struct iovec *parts, int count, off64_t at) {
    return is_full(file, at + length(parts, count)) ? -1 : REAL(pwritev64)(file, parts, count, at);
}

int posix_fallocate(int file, off_t at, off_t size) {
    return is_full(file, at + size) ? ENOSPC : REAL(posix_fallocate)(file, at, size);
}

int ftruncate(int file, off_t size) { return is_full(file, size) ? -1 : REAL(ftruncate)(file, size); }

int ftruncate64(int file, off64_t size) { return is_full(file, size) ? -1 : REAL(ftruncate64)(file, size); }

static int fails(int file) {
    struct stat known;
    if (fault()[1] <= 0 || fstat(file, &known) || !S_ISREG(known.st_mode)) return 0;
    if (__atomic_fetch_sub(&fault()[1], 1, __ATOMIC_SEQ_CST) <= 0) return 0;
    errno = EIO;
    return 1;
}

int fsync(int file) { return fails(file) ? -1 : REAL(fsync)(file); }

int fdatasync(int file) { return fails(file) ? -1 : REAL(fdatasync)(file); }
