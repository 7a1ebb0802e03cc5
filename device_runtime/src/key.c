#define _GNU_SOURCE /* O_NOFOLLOW, O_CLOEXEC */
#include "key.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void wipe(void *secret, size_t size) {
    volatile uint8_t *at = secret; /* else the compiler leaves out what nobody reads again */
    while (size > 0) at[--size] = 0;
}

/* Whether more can be read at once; a pipe that is kept open is not waited for. */
static bool goes_on(int fd) {
    uint8_t more;
    struct pollfd wait = {.fd = fd, .events = POLLIN};
    bool there = poll(&wait, 1, 0) > 0 && read(fd, &more, 1) > 0;
    wipe(&more, 1);
    return there;
}

static bool take(int fd, const char *name, uint8_t key[KEY_BYTES], Failure *failure) {
    size_t have = 0;
    while (have < KEY_BYTES) {
        ssize_t got = read(fd, key + have, KEY_BYTES - have);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        have += (size_t)got;
    }
    if (have == KEY_BYTES && !goes_on(fd)) return true;
    wipe(key, KEY_BYTES);
    return fail(failure, REFUSED, "the key in %s has %s than %d bytes; try: a key that enroll made",
                name, have < KEY_BYTES ? "less" : "more", KEY_BYTES);
}

bool key_from_stdin(uint8_t key[KEY_BYTES], Failure *failure) {
    return take(0, "standard input", key, failure);
}

bool key_from_file(const char *path, uint8_t key[KEY_BYTES], Failure *failure) {
    struct stat about;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 || fstat(fd, &about) != 0) {
        fail(failure, REFUSED, "cannot read the key file %s: %s", path,
             errno == ELOOP ? "it is a link" : strerror(errno));
    } else if (!S_ISREG(about.st_mode) || about.st_uid != geteuid()) {
        fail(failure, REFUSED, "the key file %s is not a file of the user who runs this", path);
    } else if ((about.st_mode & 077) != 0) {
        fail(failure, REFUSED, "users other than its owner may use the key file %s; try: chmod 600 %s",
             path, path);
    } else {
        take(fd, path, key, failure);
    }
    if (fd >= 0) close(fd);
    return !failure->failed;
}
