/* A fast engine for measuring proxies: OpenAI answers over HTTP/1.1, one thread, one epoll.
 *
 * usage: engine PORT [aligned]
 *
 * A body without "stream":true gets a JSON answer of 200 bytes. With it, max_tokens events are
 * sent, rate a second (0: at once), each with the monotonic clock in "t", so that a client on the
 * same machine sees the delay through whatever stands between. "aligned": all streams tick at the
 * same instants, as an engine with continuous batching does.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS_MAX = 8192, BUFFER_BYTES = 1 << 18, EVENTS_MAX = 512, LOOK_BYTES = 400 };
#define SECOND_NS 1000000000LL

typedef struct {
    char *buffer;
    int filled;
    int stream_slot; /* place in `streaming`, -1 when it streams nothing */
    int events_left, event_number;
    long long next_ns, step_ns;
} Connection;

static Connection connections[CONNECTIONS_MAX];
static int streaming[CONNECTIONS_MAX], streaming_count;
static int epoll_fd, aligned;
static char answer[1024];
static int answer_bytes;

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND_NS + t.tv_nsec;
}

static void stop_streaming(Connection *c) {
    if (c->stream_slot < 0) return;
    int last = streaming[--streaming_count];
    streaming[c->stream_slot] = last;
    connections[last].stream_slot = c->stream_slot;
    c->stream_slot = -1;
}

static void end_connection(int fd) {
    stop_streaming(&connections[fd]);
    connections[fd].filled = 0;
    close(fd);
}

/* The rates here never fill a socket buffer; a short write means that the peer is gone. */
static int put(int fd, const char *data, int size) {
    if (send(fd, data, size, MSG_NOSIGNAL) == size) return 1;
    end_connection(fd);
    return 0;
}

static int write_event(char *out, const Connection *c, long long t_ns) {
    char event[512];
    int size = sprintf(event,
        "data: {\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,"
        "\"model\":\"m\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" token %d\"},"
        "\"finish_reason\":%s}],\"t\":%lld}\n\n",
        c->event_number, c->events_left == 1 ? "\"stop\"" : "null", t_ns);
    return sprintf(out, "%x\r\n%s\r\n", size, event);
}

/* Sends one event, and the end after the last one. */
static void send_event(int fd) {
    static const char end[] = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";
    Connection *c = &connections[fd];
    char out[640];
    if (!put(fd, out, write_event(out, c, now_ns()))) return;
    c->event_number++;
    c->next_ns += c->step_ns;
    if (--c->events_left) return;
    stop_streaming(c);
    put(fd, end, sizeof end - 1);
}

static double number_after(const char *body, const char *name, double otherwise) {
    const char *found = strstr(body, name);
    return found ? atof(found + strlen(name)) : otherwise;
}

static void answer_request(int fd, char *body, int body_bytes) {
    static const char head[] =
        "HTTP/1.1 200 OK\r\nserver: engine\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
        "transfer-encoding: chunked\r\n\r\n";
    Connection *c = &connections[fd];
    int looked = body_bytes < LOOK_BYTES ? body_bytes : LOOK_BYTES;
    char kept = body[looked];
    body[looked] = 0;
    int streams = strstr(body, "\"stream\":true") != NULL;
    double rate = number_after(body, "\"rate\":", 50);
    c->events_left = (int)number_after(body, "\"max_tokens\":", 64);
    body[looked] = kept;
    if (!streams) {
        put(fd, answer, answer_bytes);
        return;
    }
    c->event_number = 0;
    if (!put(fd, head, sizeof head - 1)) return;
    if (rate <= 0) {
        c->step_ns = 0;
        while (c->events_left > 0 && c->filled >= 0) send_event(fd);
        return;
    }
    c->step_ns = (long long)(SECOND_NS / rate);
    c->next_ns = now_ns();
    if (aligned) c->next_ns = (c->next_ns / c->step_ns + 1) * c->step_ns;
    c->stream_slot = streaming_count;
    streaming[streaming_count++] = fd;
}

static void read_requests(int fd) {
    Connection *c = &connections[fd];
    int got = recv(fd, c->buffer + c->filled, BUFFER_BYTES - c->filled, 0);
    if (got <= 0) {
        if (got < 0 && errno == EAGAIN) return;
        end_connection(fd);
        return;
    }
    c->filled += got;
    c->buffer[c->filled] = 0;
    for (;;) {
        char *blank = memmem(c->buffer, c->filled, "\r\n\r\n", 4);
        if (!blank) return;
        *blank = 0;
        char *length = strcasestr(c->buffer, "content-length:");
        int head_bytes = blank + 4 - c->buffer, body_bytes = length ? atoi(length + 15) : 0;
        *blank = '\r';
        if (c->filled < head_bytes + body_bytes) return;
        answer_request(fd, c->buffer + head_bytes, body_bytes);
        c->filled -= head_bytes + body_bytes;
        if (c->filled <= 0) {
            c->filled = 0;
            return;
        }
        memmove(c->buffer, c->buffer + head_bytes + body_bytes, c->filled);
    }
}

static void accept_all(int listening) {
    int fd, one = 1;
    while ((fd = accept4(listening, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        if (fd >= CONNECTIONS_MAX) {
            close(fd);
            continue;
        }
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        Connection *c = &connections[fd];
        if (!c->buffer) c->buffer = malloc(BUFFER_BYTES + 1);
        c->filled = 0;
        c->stream_slot = -1;
        struct epoll_event wanted = {.events = EPOLLIN, .data.fd = fd};
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &wanted);
    }
}

static int open_listener(int port) {
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    if (bind(fd, (void *)&address, sizeof address) || listen(fd, 4096)) {
        perror("engine: bind");
        exit(1);
    }
    return fd;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    signal(SIGPIPE, SIG_IGN);
    prctl(PR_SET_TIMERSLACK, 1000);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    aligned = argc > 2;
    char body[201];
    int size = sprintf(body, "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion\",\"choices\":"
        "[{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"Hello\"},"
        "\"finish_reason\":\"stop\"}]}");
    memset(body + size, ' ', 200 - size);
    answer_bytes = sprintf(answer, "HTTP/1.1 200 OK\r\nserver: engine\r\ncontent-type: "
        "application/json\r\ncontent-length: 200\r\n\r\n%.200s", body);
    int listening = open_listener(atoi(argv[1]));
    epoll_fd = epoll_create1(0);
    struct epoll_event wanted = {.events = EPOLLIN, .data.fd = listening}, events[EVENTS_MAX];
    epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listening, &wanted);
    for (;;) {
        struct timespec wait, *wait_for = NULL;
        if (streaming_count) {
            long long next = connections[streaming[0]].next_ns;
            for (int i = 1; i < streaming_count; i++)
                if (connections[streaming[i]].next_ns < next) next = connections[streaming[i]].next_ns;
            long long left = next - now_ns();
            if (left < 0) left = 0;
            wait.tv_sec = left / SECOND_NS;
            wait.tv_nsec = left % SECOND_NS;
            wait_for = &wait;
        }
        int count = epoll_pwait2(epoll_fd, events, EVENTS_MAX, wait_for, NULL);
        for (int i = 0; i < count; i++) {
            if (events[i].data.fd == listening) accept_all(listening);
            else read_requests(events[i].data.fd);
        }
        long long now = streaming_count ? now_ns() : 0;
        for (int i = streaming_count - 1; i >= 0; i--)
            if (i < streaming_count && connections[streaming[i]].next_ns <= now)
                send_event(streaming[i]);
    }
}
