#define _GNU_SOURCE /* MAP_ANONYMOUS, cpu_set_t */
#include "run_command.h"

#include "artifact.h"
#include "box.h"
#include "budget.h"
#include "clock.h"
#include "cores.h"
#include "instruments.h"
#include "npy.h"
#include "pool.h"
#include "program.h"
#include "shown.h"
#include "timer.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OK = 0, FAILED = 1, MISUSED = 2, MOST_SAMPLES = 20, MOST_SECONDS = 1000000 };
enum { ENTERED = 1 << 30 };

typedef struct {
    const char *model, *output;
    const char *inputs[MLC_MAX_OPERANDS];
    uint32_t input_count;
    const char *cores;
    uint32_t threads; /* 0: as many as there are cores */
    uint32_t seconds; /* --timeout */
    bool time, stream;
} Options;

/* Written in the box, by the run and perhaps by a kernel that goes astray; read after its end. */
typedef struct {
    volatile uint32_t forbidden, call; /* as box_enter has it; the call at work */
    uint32_t loaded, done;             /* 1: so far it went well */
    volatile uint32_t held;            /* what box_enter returned, and ENTERED */
    Failure failure;
    Samples samples; /* with --time */
} Result;

typedef struct {
    Options options;
    Artifact artifact;
    Module about;
    uint32_t threads;
    Program program; /* in the box alone */
    mlc_run run;
    Instruments instruments;
    void *tensors[MLC_MAX_OPERANDS]; /* inputs, then outputs */
    bool streamed[MLC_MAX_OPERANDS]; /* those that come and go by --stream */
    Result *result;
    Failure failure;
} Job;

static Job job;

/* ---- Files ---- */

static bool file_failure(const char *what, const char *path) {
    return fail(&job.failure, REFUSED, "%s: %s: %s", path, what, strerror(errno));
}

/* A whole file, read-only; its pages are the file's own. */
static bool map_file(const char *path, Bytes *file) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    off_t end = fd < 0 ? -1 : lseek(fd, 0, SEEK_END);
    if (end >= 0 && read(fd, &(char){0}, 0) < 0) end = -1; /* a folder */
    if (end > 0 && (uint64_t)end > SIZE_MAX / 2) errno = EFBIG, end = -1;
    size_t size = end > 0 ? (size_t)end : 0;
    void *data = size > 0 ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    bool ok = end >= 0 && data != MAP_FAILED;
    *file = (Bytes){ok ? data : NULL, ok ? size : 0};
    if (!ok) file_failure("cannot be read", path);
    if (fd >= 0) close(fd);
    return ok;
}

static bool write_all(int fd, const void *data, size_t size) {
    for (const uint8_t *at = data; size > 0;) {
        ssize_t written = write(fd, at, size);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        at += written;
        size -= (size_t)written;
    }
    return true;
}

/* Appears whole under its name, or not at all. */
static bool write_file(const char *path, const char *head, size_t head_size, const void *data,
                       size_t size) {
    char temporary[PATH_MAX];
    int length = snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid());
    if (length < 0 || (size_t)length >= sizeof temporary) {
        errno = ENAMETOOLONG;
        return file_failure("cannot be written", path);
    }
    unlink(temporary); /* of a process of the same number that was ended */
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0) return file_failure("cannot be written", path);
    bool ok = write_all(fd, head, head_size) && write_all(fd, data, size);
    ok = close(fd) == 0 && ok;
    if (ok && rename(temporary, path) == 0) return true;
    file_failure("cannot be written", path);
    unlink(temporary);
    return false;
}

/* ---- Model ---- */

/* 0 where there are no such cores as were asked for. */
static uint32_t thread_count(void) {
    Cores cores;
    cpu_set_t named;
    cores_read(&cores);
    uint32_t count = cores_named(&cores, job.options.cores, &named, &job.failure);
    if (count > 0 && job.options.threads > 0) return job.options.threads;
    return count < MAX_THREADS ? count : MAX_THREADS;
}

/* What the file says of its model; nothing of it is made code yet. */
static bool read_model(void) {
    Bytes file;
    Failure *failure = &job.failure;
    if (!map_file(job.options.model, &file) ||
        !artifact_open(&job.artifact, file.data, file.size, failure))
        return false;
    Bytes object = job.artifact.object.content, weights = job.artifact.weights.content;
    if (!module_parse(&job.about, object.data, object.size, failure)) return false;
    const Model *model = &job.about.model;
    if (!model->present) return fail(failure, REFUSED, "the file's object holds no model");
    if (model->weights != weights.size ||
        (weights.size > 0 &&
         memcmp(model->weights_hash, job.artifact.weights.hash, HASH_BYTES) != 0))
        return fail(failure, REFUSED, "the file's weights do not belong to its object");
    job.threads = thread_count();
    return job.threads > 0;
}

static TensorType type_of(const Param *param) {
    TensorType type = {.dtype = param->dtype, .rank = param->rank};
    for (uint32_t i = 0; i < param->rank; i++) type.shape[i] = param->shape[i].extent;
    return type;
}

/* Zeros; `shared`: what is written in the box is seen here. */
static void *zeros(uint64_t bytes, bool shared) {
    if (bytes > budget_bytes() || bytes > SIZE_MAX / 4) return NULL;
    void *data = mmap(NULL, bytes ? (size_t)bytes : 1, PROT_READ | PROT_WRITE,
                      MAP_ANONYMOUS | MAP_NORESERVE | (shared ? MAP_SHARED : MAP_PRIVATE), -1, 0);
    return data == MAP_FAILED ? NULL : data;
}

static void *tensor_memory(const char *what, const char *name, uint64_t bytes, bool shared) {
    void *data = zeros(bytes, shared);
    if (!data)
        fail(&job.failure, MEMORY, "no memory for %s '%s' of %llu bytes", what, name,
             (unsigned long long)bytes);
    return data;
}

/* Memory for the arena, inputs and outputs; what it begins with is zero. */
static bool allocate(void) {
    const Model *model = &job.about.model;
    uint32_t inputs = model->input_count, count = inputs + model->output_count;
    if (model->arena > 0 && !(job.run.arena = tensor_memory("the", "arena", model->arena, false)))
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const Param *param = i < inputs ? &model->inputs[i] : &model->outputs[i - inputs];
        TensorType type = type_of(param);
        uint64_t bytes;
        if (!tensor_bytes(&type, &bytes)) bytes = UINT64_MAX;
        job.tensors[i] =
            tensor_memory(i < inputs ? "input" : "output", param->name, bytes, true);
        job.streamed[i] = i >= inputs && !param->state;
        if (!job.tensors[i]) return false;
    }
    job.run.inputs = job.tensors;
    job.run.outputs = job.tensors + inputs;
    job.result = zeros(sizeof *job.result, true);
    return job.result || fail(&job.failure, MEMORY, "no memory for a worker process");
}

/* ---- Inputs ---- */

/* What a tensor of job.tensors is and is called as an input; NULL for an output that is none. */
static const Param *input_of(uint32_t i, const char **name) {
    const Model *model = &job.about.model;
    bool state = i >= model->input_count;
    const Param *param = state ? &model->outputs[i - model->input_count] : &model->inputs[i];
    *name = state ? param->state : param->name;
    return *name ? param : NULL;
}

static uint32_t tensor_count(void) {
    return job.about.model.input_count + job.about.model.output_count;
}

/* The names of the model's inputs, for a message; as many as fit. */
static const char *input_names(char *text, size_t size) {
    const char *name;
    size_t used = 0;
    text[0] = 0;
    for (uint32_t i = 0; i < tensor_count() && used < size; i++)
        if (input_of(i, &name))
            used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", name);
    return used > 0 ? text : "none";
}

/* Which input "NAME=FILE" is for, and its file; without a name, the only one. */
static bool find_input(const char *given, uint32_t *index, const char **path) {
    char names[256];
    const Model *model = &job.about.model;
    const char *equals = strchr(given, '=');
    *path = equals ? equals + 1 : given;
    *index = 0;
    if (!equals && model->input_count == 1) return true;
    size_t length = equals ? (size_t)(equals - given) : 0;
    for (uint32_t i = 0; equals && i < tensor_count(); i++) {
        const char *name;
        *index = i;
        if (input_of(i, &name) && strlen(name) == length && memcmp(name, given, length) == 0)
            return true;
    }
    if (!equals)
        return fail(&job.failure, REFUSED,
                    "the model has %u inputs, and --input %s does not say which; try: "
                    "--input NAME=%s, with NAME one of %s",
                    model->input_count, given, given, input_names(names, sizeof names));
    return fail(&job.failure, REFUSED, "the model has no input '%.*s'; try: %s", (int)length, given,
                input_names(names, sizeof names));
}

static bool read_input(const char *given, bool *seen) {
    uint32_t index;
    const char *path, *name;
    Bytes file;
    Npy npy;
    if (!find_input(given, &index, &path) || !map_file(path, &file)) return false;
    const Param *param = input_of(index, &name);
    const TensorType *type = &npy.type;
    if (seen[index]) return fail(&job.failure, REFUSED, "input '%s' is given twice", name);
    seen[index] = true;
    bool ok = npy_read(&npy, file.data, file.size, path, &job.failure) &&
              params_accept(param, 1, NULL, NULL, 0, &type, path, &job.failure);
    if (ok && npy.content.size > 0) /* not used in place: kernels want it aligned */
        memcpy(job.tensors[index], npy.content.data, npy.content.size);
    if (file.size > 0) munmap((void *)(uintptr_t)file.data, file.size);
    return ok;
}

static bool read_inputs(void) {
    const Model *model = &job.about.model;
    bool seen[MLC_MAX_OPERANDS] = {false};
    for (uint32_t i = 0; i < job.options.input_count; i++)
        if (!read_input(job.options.inputs[i], seen)) return false;
    for (uint32_t i = 0; i < model->input_count; i++) {
        job.streamed[i] = !seen[i];
        if (!seen[i] && !job.options.stream)
            return fail(&job.failure, REFUSED, "input '%s' is missing; try: --input %s=FILE.npy",
                        model->inputs[i].name, model->inputs[i].name);
    }
    return true;
}

/* ---- Running, in the box ---- */

static bool load_program(Failure *failure) {
    Bytes object = job.artifact.object.content, weights = job.artifact.weights.content;
    Program *program = &job.program;
    if (!program_load(program, object.data, object.size, failure) ||
        !program_reserve(program, job.threads, failure) ||
        !pool_prepare(job.threads, job.options.cores, failure))
        return false;
    job.instruments = (Instruments){.progress = &job.result->call,
                                    .threads = job.threads,
                                    .workspace_stride = program->workspace_stride};
    program_table(program, &job.run);
    job.run.weights = weights.data;
    job.run.workspace = program->workspace;
    job.run.invoke = instruments_invoke;
    job.run.context = &job.instruments;
    return true;
}

static bool run_once(void *context) {
    (void)context;
    uint32_t failed = 0;
    instruments_begin(&job.instruments);
    int32_t status = mlc_execute(&job.run, &failed);
    return status == MLC_OK ||
           program_bad_status(&job.program, NULL, status, failed, &job.result->failure);
}

/* As many samples as take two seconds together, within limits, each of at least 20 ms. */
static bool time_runs(double once) {
    enum { LEAST = 3 };
    double wanted = once > 0.1 ? 2 / once : (double)MOST_SAMPLES;
    TimerOptions options = TIMER_DEFAULTS;
    Timed timed = {.run = run_once};
    options.number = 1;
    options.min_repeat_ms = 20;
    options.repeat = wanted < (double)LEAST ? LEAST : (uint32_t)wanted;
    return time_evaluate(&options, &timed, &job.result->samples, &job.result->failure);
}

/* Tells the outside that it is ready, and runs once for each answer, until there is none. */
static bool serve_frames(void) {
    char byte = 0;
    struct iovec place = {&byte, 1};
    struct msghdr packet = {.msg_iov = &place, .msg_iovlen = 1};
    bool ran = true;
    while (ran && send(BOX_SOCKET, &byte, 1, MSG_NOSIGNAL) == 1 &&
           recvmsg(BOX_SOCKET, &packet, 0) == 1)
        ran = run_once(NULL);
    return ran;
}

static _Noreturn void work(int socket, uint32_t held) {
    Result *result = job.result;
    result->held = ENTERED | box_enter(socket, held, &result->forbidden, &result->failure);
    result->loaded = !result->failure.failed && load_program(&result->failure);
    if (job.options.stream) {
        result->done = result->loaded && serve_frames();
        _exit(0);
    }
    uint64_t begin = mlc_nanoseconds();
    bool ran = result->loaded && run_once(NULL);
    double once = (double)(mlc_nanoseconds() - begin) / 1e9;
    result->done = ran && (!job.options.time || time_runs(once));
    _exit(0);
}

/* ---- ... and outside of it ---- */

/* What was at work. */
static void say_where(char *where, size_t size) {
    uint32_t call = job.result->call;
    if (job.result->loaded && call < job.about.model.call_count) {
        Place place = program_place(&job.about, call);
        place_text(&place, true, where, size);
    } else {
        snprintf(where, size, "loading the model");
    }
}

static void tell_death(int status) {
    char where[MAX_PLACE_TEXT], signal[16];
    uint32_t forbidden = job.result->forbidden;
    say_where(where, sizeof where);
    box_tell(&job.failure, where, BY_ITSELF, status, forbidden, signal);
}

/* Waits for a packet of the worker, or its end. False, with the failure, if --timeout is over first. */
static bool await_worker(int socket) {
    char where[MAX_PLACE_TEXT];
    struct pollfd worker = {.fd = socket, .events = POLLIN};
    uint64_t end = mlc_nanoseconds() + job.options.seconds * (uint64_t)1000000000;
    for (uint64_t now; (now = mlc_nanoseconds()) < end;) {
        int ready = poll(&worker, 1, (int)((end - now) / 1000000) + 1);
        if (ready > 0 || (ready < 0 && errno != EINTR)) return true;
    }
    say_where(where, sizeof where);
    return fail(&job.failure, TIMEOUT, "%s did not end within %u s; try: --timeout with more seconds, "
                "if it is slow rather than stuck", where, job.options.seconds);
}

/* One line on what this system lacks that would hold a model's code. */
static void tell_box(void) {
    uint32_t held = job.result->held;
    const char *comma = "";
    if (!(held & ENTERED) || (held & (BOX_SYSCALLS | BOX_FILES)) == (BOX_SYSCALLS | BOX_FILES)) return;
    fprintf(stderr, "warning: this system's sandbox lacks ");
    for (uint32_t i = 0; i < BOX_PARTS; i++)
        if (!(held & 1U << i) && 1U << i != BOX_MEMORY) { /* nobody else has this memory */
            fprintf(stderr, "%s%s", comma, box_names[i]);
            comma = ", ";
        }
    fprintf(stderr, "; try: only models from people you trust\n");
}

typedef enum { WHOLE, END, BROKEN } Frame;

/* The bytes of the inputs that come by the stream. The last frame may be followed by none. */
static Frame read_frame(void) {
    const Model *model = &job.about.model;
    size_t whole = 0, got = 0;
    for (uint32_t i = 0; i < model->input_count; i++) {
        uint64_t bytes = 0;
        TensorType type = type_of(&model->inputs[i]);
        if (!job.streamed[i] || !tensor_bytes(&type, &bytes)) continue;
        whole += (size_t)bytes;
        for (uint8_t *at = job.tensors[i]; bytes > 0;) {
            ssize_t more = read(STDIN_FILENO, at, (size_t)bytes);
            if (more < 0 && errno == EINTR) continue;
            if (more < 0) return file_failure("cannot be read", "standard input"), BROKEN;
            if (more == 0 && got == 0) return END;
            if (more == 0)
                return fail(&job.failure, REFUSED, "standard input ends within a frame: after %zu "
                            "bytes of it", got), BROKEN;
            at += more, got += (size_t)more, bytes -= (uint64_t)more;
        }
    }
    if (whole > 0) return WHOLE;
    return fail(&job.failure, REFUSED, "no input is left for --stream; try: without --input for "
                "what comes frame by frame"), BROKEN;
}

static bool write_results(void) {
    const Model *model = &job.about.model;
    for (uint32_t i = 0; i < model->output_count; i++) {
        uint64_t bytes = 0;
        TensorType type = type_of(&model->outputs[i]);
        if (!job.streamed[model->input_count + i] || !tensor_bytes(&type, &bytes)) continue;
        if (!write_all(STDOUT_FILENO, job.run.outputs[i], (size_t)bytes))
            return file_failure("cannot be written", "standard output");
    }
    return true;
}

/* Frame after frame through the box, until its end or the input's. */
static void stream(int socket) {
    char byte = 0;
    bool ready = await_worker(socket) && recv(socket, &byte, 1, 0) == 1;
    while (ready && read_frame() == WHOLE && send(socket, &byte, 1, MSG_NOSIGNAL) == 1)
        ready = await_worker(socket) && recv(socket, &byte, 1, 0) == 1 && write_results();
    shutdown(socket, SHUT_WR); /* the worker ends; its end of the socket then closes */
}

static bool run_in_box(void) {
    int socket;
    uint32_t held;
    Result *result = job.result;
    pid_t pid = box_fork(&socket, &held, &job.failure);
    if (pid < 0) return false;
    if (pid == 0) work(socket, held);
    if (job.options.stream) stream(socket);
    if (!job.failure.failed) await_worker(socket); /* it closes its end when it ends */
    int status = box_end(pid);
    tell_box();
    if (job.failure.failed) return false;
    const Samples *samples = &result->samples;
    bool timed = samples->count - 1 < MOST_SAMPLES && samples->rows - 1 < MAX_ROWS;
    if (status == 0 && result->done == 1 && (timed || !job.options.time)) return true;
    job.failure = result->failure;
    failure_mend(&job.failure);
    if (!job.failure.failed) tell_death(status);
    return false;
}

static void sort(double *values, uint32_t count) { /* a few; libc's qsort is 4 KB */
    for (uint32_t i = 1; i < count; i++)
        for (uint32_t k = i; k > 0 && values[k] < values[k - 1]; k--) {
            double larger = values[k - 1];
            values[k - 1] = values[k];
            values[k] = larger;
        }
}

static double middle(const double *sorted, uint32_t count) {
    return (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

static void print_milliseconds(const char *what, double seconds) {
    unsigned long long microseconds = (unsigned long long)(seconds * 1e6 + 0.5);
    printf("%s %llu.%03u ms, ", what, microseconds / 1000, (unsigned)(microseconds % 1000));
}

/* What was so before the first sample and after the last, by the names of mlc_rpc/wire.py. */
static void print_conditions(const Conditions *before, const Conditions *after) {
    const char *comma = "conditions:";
    for (uint32_t i = 0; i < FACTS; i++)
        if (before->facts[i] >= 0 && after->facts[i] >= 0) {
            printf("%s %s %lld to %lld", comma, conditions_name(i), (long long)before->facts[i],
                   (long long)after->facts[i]);
            comma = ",";
        }
    printf("\n");
}

static void print_times(const Samples *samples) {
    double sorted[MOST_SAMPLES], away[MOST_SAMPLES];
    uint32_t count = samples->count;
    memcpy(sorted, samples->seconds, count * sizeof *sorted);
    sort(sorted, count);
    double median = middle(sorted, count);
    for (uint32_t i = 0; i < count; i++)
        away[i] = sorted[i] < median ? median - sorted[i] : sorted[i] - median;
    sort(away, count);
    print_milliseconds("time: median", median);
    print_milliseconds("p95", sorted[(count * 95 + 99) / 100 - 1]);
    print_milliseconds("deviation", middle(away, count));
    print_milliseconds("least", sorted[0]);
    print_milliseconds("most", sorted[count - 1]);
    printf("%u samples\n", count);
    print_conditions(&samples->before[0], &samples->after[samples->rows - 1]);
}

/* ---- Outputs ---- */

/* A tensor's name may hold what a file's may not. */
static void file_name(const char *name, char *text, size_t size) {
    size_t used = 0;
    for (; *name && used + 1 < size; name++) {
        unsigned c = (unsigned char)*name;
        bool kept = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                    c == '_' || c == '-' || c == '.';
        size_t length = c >= 0x80 ? printable(name) : 0;
        if (length > 0 && used + length < size) {
            memcpy(text + used, name, length);
            used += length, name += length - 1;
        } else {
            text[used++] = (char)(kept ? c : '_');
        }
    }
    text[used] = 0;
}

static bool write_outputs(void) {
    const Model *model = &job.about.model;
    const char *folder = job.options.output;
    if (mkdir(folder, 0755) != 0 && errno != EEXIST)
        return file_failure("cannot be made", folder);
    for (uint32_t i = 0; i < model->output_count; i++) {
        char path[PATH_MAX], name[200], head[MAX_NPY_HEAD];
        TensorType type = type_of(&model->outputs[i]);
        uint64_t bytes;
        size_t head_size = npy_head(&type, head);
        file_name(model->outputs[i].name, name, sizeof name);
        tensor_bytes(&type, &bytes);
        snprintf(path, sizeof path, "%s/%s.npy", folder, name);
        if (!write_file(path, head, head_size, job.run.outputs[i], (size_t)bytes)) return false;
        if (!job.options.stream) printf("%s\n", path);
    }
    return true;
}

/* ---- Entry ---- */

static bool run_job(void) {
    box_adopt();
    if (!read_model() || !allocate() || !read_inputs() || !run_in_box()) return false;
    if (job.options.output && !write_outputs()) return false;
    if (job.options.time) print_times(&job.result->samples);
    return true;
}

static int misused(const char *what, const char *about) {
    fprintf(stderr, "error: %s%s\nusage: mlc-runtime " RUN_USAGE "\n", what, about);
    return MISUSED;
}

/* A number from 1 to `most`; 0 for other text. */
static uint32_t number_of(const char *text, uint32_t most) {
    uint32_t number = 0;
    for (; *text >= '0' && *text <= '9' && number <= most; text++)
        number = 10 * number + (uint32_t)(*text - '0');
    return *text || number > most ? 0 : number;
}

static int parse(int count, char **arguments) {
    Options *o = &job.options;
    o->cores = "";
    o->seconds = RUN_SECONDS;
    for (int i = 0; i < count; i++) {
        const char *word = arguments[i];
        bool valued = strcmp(word, "--input") == 0 || strcmp(word, "--output") == 0 ||
                      strcmp(word, "--threads") == 0 || strcmp(word, "--cores") == 0 ||
                      strcmp(word, "--timeout") == 0;
        if (valued && i + 1 == count) return misused("nothing follows ", word);
        const char *value = valued ? arguments[++i] : "";
        if (strcmp(word, "--time") == 0) {
            o->time = true;
        } else if (strcmp(word, "--stream") == 0) {
            o->stream = true;
        } else if (strcmp(word, "--output") == 0) {
            o->output = value;
        } else if (strcmp(word, "--cores") == 0) {
            o->cores = value;
        } else if (strcmp(word, "--threads") == 0) {
            if (!(o->threads = number_of(value, MAX_THREADS)))
                return misused("a model runs on 1 to 256 threads, not on ", value);
        } else if (strcmp(word, "--timeout") == 0) {
            if (!(o->seconds = number_of(value, MOST_SECONDS)))
                return misused("--timeout takes 1 to 1000000 seconds, not ", value);
        } else if (valued) {
            if (o->input_count == MLC_MAX_OPERANDS) return misused("too many inputs: ", value);
            o->inputs[o->input_count++] = value;
        } else if (word[0] == '-') {
            return misused("there is no option ", word);
        } else if (o->model) {
            return misused("one model is enough, and here is another: ", word);
        } else {
            o->model = word;
        }
    }
    if (o->time && o->stream) return misused("--time and --stream do not go together", "");
    return o->model ? OK : misused("no model is named", "");
}

int run_command(int count, char **arguments) {
    int wrong = parse(count, arguments);
    if (wrong) return wrong;
    bool ok = run_job();
    if (fflush(stdout) != 0 && ok) ok = file_failure("cannot be written", "standard output");
    if (ok) return OK;
    char text[2 * sizeof job.failure.text];
    fprintf(stderr, "error: %s\n", shown(job.failure.text, text, sizeof text));
    return FAILED;
}
