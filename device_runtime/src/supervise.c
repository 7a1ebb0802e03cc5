#define _GNU_SOURCE /* F_SETPIPE_SZ */
#include "supervise.h"

#include "session.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

enum { PIPE_BYTES = 1 << 20 };

/* Returns false at the end of the stream. */
static bool take_input(Session *s, int input) {
    uint8_t *to;
    size_t size;
    if (!session_room(s, &to, &size)) return true;
    ssize_t got = read(input, to, size);
    if (got > 0) session_took(s, (size_t)got);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

static bool send_output(Session *s, int output) {
    struct iovec parts[2];
    if (!session_output(s, parts)) return true;
    ssize_t sent = writev(output, parts, 2);
    if (sent > 0) session_sent(s, (size_t)sent);
    return sent >= 0 || errno == EAGAIN || errno == EINTR;
}

static int serve(Session *s, int input, int output) {
    for (;;) {
        uint8_t *to;
        size_t size;
        struct iovec parts[2];
        /* Most of the time there is room in the pipe; asking first would be a call more. */
        if (!send_output(s, output)) return 1;
        bool sending = session_output(s, parts);
        if (s->ended && !sending) return 1;
        bool working = session_work(s);
        struct pollfd fds[3] = {
            {.fd = input, .events = session_room(s, &to, &size) ? POLLIN : 0},
            {.fd = output, .events = session_output(s, parts) ? POLLOUT : 0},
            {.fd = sending ? -1 : link_fd(), .events = POLLIN},
        };
        /* While nothing is read, a hang-up of the input would keep poll from waiting. */
        if (!fds[0].events) fds[0].fd = -1;
        int ready = poll(fds, 3, working ? 0 : link_milliseconds());
        if (ready < 0 && errno != EINTR) return 1;
        link_check_deadline();
        if (ready <= 0) continue;
        if (fds[1].revents & (POLLERR | POLLNVAL)) return 1; /* nobody reads any more */
        if (fds[0].revents && !take_input(s, input)) return 0;
        Answer answer;
        if (fds[2].revents && !session_output(s, parts) && link_collect(&answer))
            session_answer(s, &answer);
    }
}

int supervise(int input, int output) {
    static Session session;
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) { /* each tensor and each blob takes one */
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    signal(SIGPIPE, SIG_IGN);
    fcntl(input, F_SETPIPE_SZ, PIPE_BYTES); /* fewer turns per chunk; no matter if it is no pipe */
    fcntl(output, F_SETPIPE_SZ, PIPE_BYTES);
    int flags = fcntl(output, F_GETFL);
    fcntl(output, F_SETFL, flags | O_NONBLOCK); /* a client that does not read stops no deadline */
    session_begin(&session);
    int status = serve(&session, input, output);
    link_end();
    fcntl(output, F_SETFL, flags);
    return status;
}
