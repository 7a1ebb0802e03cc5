#define _GNU_SOURCE /* accept4 */
#include "listen.h"

#include "auth.h"
#include "budget.h"
#include "clock.h"
#include "cpu.h"
#include "record.h"
#include "supervise.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    MAX_GUESTS = 8,      /* connections that have proven nothing yet */
    GUEST_MS = 5000,     /* that one of them may take */
    CROWDED_MS = 1000,   /* the same while others wait: a few slow ones keep nobody out */
    WAITING = 64,        /* connections that the system keeps until there is room */
    PEER_TEXT = 80
};

typedef union {
    struct sockaddr any;
    struct sockaddr_in four;
    struct sockaddr_in6 six;
} Address;

typedef struct {
    int fd; /* -1: nobody */
    uint64_t since;
    Greeting greeting;
    char peer[PEER_TEXT];
} Guest;

static Guest guests[MAX_GUESTS];

/* ---- Addresses ---- */

static bool parse(const char *text, Address *address, socklen_t *size) {
    char host[64] = "127.0.0.1";
    const char *colon = strrchr(text, ':'), *port = colon ? colon + 1 : text;
    size_t length = colon ? (size_t)(colon - text) : 0;
    bool six = colon && text[0] == '[' && length > 1 && text[length - 1] == ']';
    if (six) text++, length -= 2;
    if (length >= sizeof host || !*port) return false;
    if (colon) snprintf(host, sizeof host, "%.*s", (int)length, text);
    uint32_t number = 0;
    for (; *port >= '0' && *port <= '9' && number <= UINT16_MAX; port++)
        number = 10 * number + (uint32_t)(*port - '0');
    if (*port || number > UINT16_MAX) return false;
    memset(address, 0, sizeof *address);
    if (six) {
        address->six.sin6_family = AF_INET6;
        address->six.sin6_port = htons((uint16_t)number);
        *size = sizeof address->six;
        return inet_pton(AF_INET6, host, &address->six.sin6_addr) == 1;
    }
    address->four.sin_family = AF_INET;
    address->four.sin_port = htons((uint16_t)number);
    *size = sizeof address->four;
    return inet_pton(AF_INET, host, &address->four.sin_addr) == 1;
}

static void address_text(const Address *address, char text[PEER_TEXT]) {
    char host[INET6_ADDRSTRLEN] = "?";
    bool six = address->any.sa_family == AF_INET6;
    const void *from = six ? (const void *)&address->six.sin6_addr : &address->four.sin_addr;
    uint16_t port = six ? address->six.sin6_port : address->four.sin_port;
    inet_ntop(address->any.sa_family, from, host, sizeof host);
    snprintf(text, PEER_TEXT, six ? "[%s]:%u" : "%s:%u", host, ntohs(port));
}

/* ---- Guests ---- */

static void dismiss(Guest *guest, const char *why) {
    if (why) fprintf(stderr, "mlc-runtime: %s refused: %s\n", guest->peer, why);
    close(guest->fd);
    guest->fd = -1;
}

/* A peer that is gone without a word is noticed by the system, whatever the client promised. */
static void keep_alive(int fd) {
    static const struct {
        int option, value;
    } options[] = {{TCP_NODELAY, 1},
                   {TCP_KEEPIDLE, 4},            /* seconds, as the next */
                   {TCP_KEEPINTVL, 2},
                   {TCP_KEEPCNT, 2},
                   {TCP_USER_TIMEOUT, 9000}};    /* milliseconds that data may go unacknowledged */
    int on = 1;
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        setsockopt(fd, IPPROTO_TCP, options[i].option, &options[i].value, sizeof(int));
}

static void welcome(Guest *guest, int listening) {
    Address address;
    socklen_t size = sizeof address;
    guest->fd = accept4(listening, &address.any, &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (guest->fd < 0) {
        struct timespec moment = {.tv_nsec = 100000000};
        if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) nanosleep(&moment, NULL);
        return;
    }
    guest->since = mlc_nanoseconds();
    address_text(&address, guest->peer);
    keep_alive(guest->fd);
    greeting_begin(&guest->greeting);
}

/* In a process of its own: the guest has become a client. */
static int serve_client(Guest *guest, int listening, uint8_t key[KEY_BYTES]) {
    static Records records;
    uint8_t in_key[HASH_BYTES], out_key[HASH_BYTES];
    int fd = guest->fd;
    greeting_keys(&guest->greeting, key, in_key, out_key);
    records_begin(&records, in_key, out_key);
    wipe(key, KEY_BYTES); /* what a client's kernels could find here opens no other session */
    wipe(in_key, sizeof in_key);
    wipe(out_key, sizeof out_key);
    close(listening);
    for (int i = 0; i < MAX_GUESTS; i++)
        if (guests[i].fd >= 0 && guests[i].fd != fd) close(guests[i].fd);
    signal(SIGCHLD, SIG_DFL);
    if (!budget_join(guest->peer)) {
        fprintf(stderr, "mlc-runtime: too many sessions for %s\n", guest->peer);
        return 1;
    }
    return supervise(fd, fd, &records);
}

/* Returns -1, or in the client's process the exit status. */
static int admit(Guest *guest, int listening, uint8_t key[KEY_BYTES]) {
    pid_t listener = getpid(), pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != listener) return 1; /* it died before the line above */
        int status = serve_client(guest, listening, key);
        fprintf(stderr, "mlc-runtime: session of %s has ended\n", guest->peer);
        return status;
    }
    if (pid > 0) fprintf(stderr, "mlc-runtime: session of %s begins\n", guest->peer);
    dismiss(guest, pid < 0 ? strerror(errno) : NULL);
    return -1;
}

/* Reads and writes what there is. Returns -1, or in a client's process its exit status. */
static int attend(Guest *guest, int listening, uint8_t key[KEY_BYTES]) {
    Greeting *g = &guest->greeting;
    uint8_t *to;
    const uint8_t *data;
    size_t size = greeting_room(g, &to);
    if (size > 0) {
        ssize_t got = read(guest->fd, to, size);
        if (got > 0) greeting_took(g, (size_t)got, key);
        if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) {
            dismiss(guest, "it hung up before a proof");
            return -1;
        }
    }
    while ((size = greeting_output(g, &data)) > 0) {
        ssize_t sent = write(guest->fd, data, size);
        if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return -1;
        if (sent <= 0) {
            dismiss(guest, "it hung up before a proof");
            return -1;
        }
        greeting_sent(g, (size_t)sent);
    }
    if (g->proven) return admit(guest, listening, key);
    if (g->ended) dismiss(guest, g->failure.text);
    return -1;
}

/* ---- The loop ---- */

static int64_t age_ms(const Guest *guest) {
    return (int64_t)(mlc_nanoseconds() - guest->since) / 1000000;
}

static int loop(int listening, uint8_t key[KEY_BYTES]) {
    for (;;) {
        struct pollfd fds[MAX_GUESTS + 1];
        Guest *empty = NULL, *oldest = NULL;
        const uint8_t *data;
        for (int i = 0; i < MAX_GUESTS; i++) {
            Guest *guest = &guests[i];
            if (guest->fd >= 0 && age_ms(guest) >= GUEST_MS)
                dismiss(guest, "it took too long to prove its key");
            if (guest->fd < 0) empty = guest;
            if (guest->fd >= 0 && (!oldest || guest->since < oldest->since)) oldest = guest;
            bool speaks = greeting_output(&guest->greeting, &data) > 0;
            fds[i] = (struct pollfd){.fd = guest->fd, .events = speaks ? POLLOUT : POLLIN};
        }
        bool room = empty || (oldest && age_ms(oldest) >= CROWDED_MS);
        fds[MAX_GUESTS] = (struct pollfd){.fd = room ? listening : -1, .events = POLLIN};
        int64_t wait = oldest ? (room ? GUEST_MS : CROWDED_MS) - age_ms(oldest) : -1;
        if (oldest && wait < 0) wait = 0;
        if (poll(fds, MAX_GUESTS + 1, (int)wait) < 0) continue;
        for (int i = 0; i < MAX_GUESTS; i++) {
            int status = fds[i].revents ? attend(&guests[i], listening, key) : -1;
            if (status >= 0) return status;
        }
        if (!fds[MAX_GUESTS].revents) continue;
        if (!empty) empty = oldest;
        if (empty->fd >= 0) dismiss(empty, "it was slow to prove its key, and others wait");
        welcome(empty, listening);
    }
}

int listen_on(const char *where, uint8_t key[KEY_BYTES]) {
    Address address;
    socklen_t size;
    char text[PEER_TEXT];
    int on = 1;
    if (!parse(where, &address, &size)) {
        fprintf(stderr, "mlc-runtime: '%s' is not [ADDRESS:]PORT; try: 9190, 0.0.0.0:9190 or "
                        "[::]:9190\n", where);
        return 2;
    }
    address_text(&address, text);
    int fd = socket(address.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (fd < 0 || bind(fd, &address.any, size) != 0 || listen(fd, WAITING) != 0 ||
        getsockname(fd, &address.any, &size) != 0 || !budget_share()) {
        fprintf(stderr, "mlc-runtime: cannot listen on %s: %s\n", text, strerror(errno));
        return 1;
    }
    signal(SIGCHLD, SIG_IGN); /* ended sessions leave no zombies */
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < MAX_GUESTS; i++) guests[i].fd = -1;
    address_text(&address, text);
    fprintf(stderr, "mlc-runtime: listening on %s\n", text);
    return loop(fd, key);
}
