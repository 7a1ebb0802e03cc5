#define _GNU_SOURCE /* F_SETPIPE_SZ */
#include "supervise.h"

#include "clock.h"
#include "serve.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PIPE_BYTES = 1 << 20 };

typedef struct {
    Session *session;
    int input, output;
    Records *records; /* NULL: what goes over the stream is what the session takes and gives */
    uint64_t moved;   /* when a byte last went either way, in nanoseconds */
    int waiting;      /* bytes that had come and were not read, when they were last counted */
} Stream;

static bool later(void) { return errno == EAGAIN || errno == EINTR; }

static bool moved(Stream *t, ssize_t size) {
    if (size > 0) t->moved = mlc_nanoseconds();
    return size > 0;
}

/* ---- Bytes in and out; each returns false at the end of the stream ---- */

/* Gives the session what it takes of the payload that is there. */
static bool give_payload(Stream *t) {
    uint8_t *to;
    const uint8_t *data;
    size_t size, room;
    while ((size = records_payload(t->records, &data)) > 0 &&
           session_room(t->session, &to, &room)) {
        if (size > room) size = room;
        memcpy(to, data, size);
        session_took(t->session, size);
        records_used(t->records, size);
    }
    if (t->records->why) fprintf(stderr, "mlc-runtime: %s; the session ends\n", t->records->why);
    return !t->records->why;
}

static bool take_input(Stream *t) {
    uint8_t *to;
    size_t size;
    if (t->records)
        size = records_room(t->records, &to);
    else if (!session_room(t->session, &to, &size))
        return true;
    ssize_t got = read(t->input, to, size);
    if (!moved(t, got)) return got < 0 && later();
    if (t->records) {
        records_took(t->records, (size_t)got);
        return give_payload(t);
    }
    session_took(t->session, (size_t)got);
    return true;
}

static bool send_records(Stream *t) {
    struct iovec parts[2];
    const uint8_t *data;
    for (;;) {
        size_t size = records_output(t->records, &data);
        if (size == 0) {
            if (!session_output(t->session, parts)) return true;
            session_sent(t->session, records_seal(t->records, parts));
            if (!give_payload(t)) return false;
            continue;
        }
        ssize_t sent = write(t->output, data, size);
        if (!moved(t, sent)) return later();
        records_sent(t->records, (size_t)sent);
    }
}

static bool send_output(Stream *t) {
    struct iovec parts[2];
    if (t->records) return send_records(t);
    if (!session_output(t->session, parts)) return true;
    ssize_t sent = writev(t->output, parts, 2);
    if (!moved(t, sent)) return later();
    session_sent(t->session, (size_t)sent);
    return true;
}

static bool sending(const Stream *t) {
    struct iovec parts[2];
    const uint8_t *data;
    return session_output(t->session, parts) ||
           (t->records && records_output(t->records, &data) > 0);
}

/* Whether more of the stream is wanted. What lies in a record already comes first. */
static bool receiving(const Stream *t) {
    uint8_t *to;
    const uint8_t *data;
    size_t size;
    return session_room(t->session, &to, &size) &&
           !(t->records && records_payload(t->records, &data) > 0);
}

/* ---- The loop ---- */

/* Milliseconds until a silent client is taken for dead; -1: never, 0: it is. */
static int patience(const Stream *t) {
    uint64_t most = (uint64_t)t->session->patience_ms * 1000000;
    if (most == 0) return -1;
    uint64_t silent = mlc_nanoseconds() - t->moved;
    if (silent >= most) return 0;
    uint64_t left = (most - silent) / 1000000 + 1;
    return left < 1000000 ? (int)left : 1000000;
}

/* While nothing is read, what comes nevertheless is a sign of life: all that was sent may lie in the
 * system's buffers, for minutes before a slow link. Returns the milliseconds until the next look. */
static int look_for_life(Stream *t) {
    int waiting = 0;
    if (ioctl(t->input, FIONREAD, &waiting) == 0 && waiting > t->waiting)
        t->moved = mlc_nanoseconds();
    t->waiting = waiting;
    uint32_t most = t->session->patience_ms / 8;
    return most == 0 ? -1 : most < 1000 ? (int)most : 1000;
}

static int sooner(int a, int b) { return a < 0 || (b >= 0 && b < a) ? b : a; }

static int serve(Stream *t) {
    Session *s = t->session;
    for (;;) {
        /* Most of the time there is room in the pipe; asking first would be a call more. */
        if (!send_output(t)) return 1;
        bool was_sending = sending(t);
        if (s->ended && !was_sending) return 1;
        bool working = session_work(s);
        struct pollfd fds[3] = {
            {.fd = t->input, .events = POLLIN},
            {.fd = t->output, .events = sending(t) ? POLLOUT : 0},
            {.fd = was_sending ? -1 : link_fd(), .events = POLLIN},
        };
        int look = -1;
        if (receiving(t)) {
            t->waiting = 0;
        } else { /* a hang-up of the input would keep poll from waiting */
            fds[0].fd = -1;
            look = look_for_life(t);
        }
        int wait = sooner(look, sooner(link_milliseconds(), patience(t)));
        if (working || (link_ended() && !was_sending)) wait = 0;
        int ready = link_poll(fds, 3, wait);
        if (ready < 0 && errno != EINTR) return 1;
        link_check_deadline();
        bool ended = link_ended();
        if (ready <= 0 && !ended) {
            if (patience(t) != 0) continue;
            fprintf(stderr, "mlc-runtime: nothing from the client for %u ms; the session ends\n",
                    s->patience_ms);
            return 1;
        }
        if (fds[1].revents & (POLLERR | POLLNVAL)) return 1; /* nobody reads any more */
        if (fds[0].revents && !take_input(t)) return t->records && t->records->why ? 1 : 0;
        Answer answer;
        if ((fds[2].revents || ended) && !sending(t) && link_collect(&answer))
            session_answer(s, &answer);
    }
}

int supervise(int input, int output, Records *records) {
    static Session session;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) { /* each tensor and each blob takes one */
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    if (getrlimit(RLIMIT_FSIZE, &files) == 0) { /* of memory objects, too */
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_FSIZE, &files);
    }
    signal(SIGXFSZ, SIG_IGN); /* the call that met the limit says so */
    signal(SIGPIPE, SIG_IGN);
    fcntl(input, F_SETPIPE_SZ, PIPE_BYTES); /* fewer turns per chunk; no matter if it is not a pipe */
    fcntl(output, F_SETPIPE_SZ, PIPE_BYTES);
    int flags = fcntl(output, F_GETFL);
    fcntl(output, F_SETFL, flags | O_NONBLOCK); /* a client that does not read stops no deadline */
    session_begin(&session, METHODS, records != NULL);
    Stream stream = {.session = &session, .input = input, .output = output, .records = records,
                     .moved = mlc_nanoseconds()};
    link_begin();
    int status = serve(&stream);
    link_end();
    fcntl(output, F_SETFL, flags);
    return status;
}
