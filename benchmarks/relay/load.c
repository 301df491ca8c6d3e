/* Load for measuring proxies: keep-alive connections, one thread, one epoll; JSON on stdout.
 *
 * usage: load PORT CONNECTIONS SECONDS BODY_BYTES ARRIVALS_PER_S STREAM_EVENTS EVENTS_PER_S
 *             [KEY MODEL]
 *
 * ARRIVALS_PER_S > 0 is an open loop: requests become due on a fixed schedule, whether or not
 * earlier ones are answered, and their delay counts from then. 0 is a closed loop: each connection
 * asks again when it is answered. STREAM_EVENTS > 0 asks for streams, begun staggered over one
 * stream's length; the delay of each event counts from the engine's clock in it.
 *
 * Everything stops at SECONDS + 10.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { LINE_BYTES = 4096, EVENTS_MAX = 512, READ_BYTES = 1 << 18 };
#define SECOND_NS 1000000000LL
#define GRACE_NS (10 * SECOND_NS)

typedef struct {
    int fd, busy, status, in_body, sent, done_seen;
    long long begun_ns, due_ns, body_left, start_ns;
    char line[LINE_BYTES];
    int line_bytes;
} Connection;

typedef struct {
    double *values;
    long count, room;
} Delays;

static Connection *connections;
static int connection_count, epoll_fd, port, streams;
static char *request;
static int request_bytes;
static Delays answer_delays, event_delays;
static long answered, failed, broken, events_seen;
static long long end_ns, interval_ns, next_arrival_ns;
static int *idle, idle_count;

static long long now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * SECOND_NS + t.tv_nsec;
}

static void note(Delays *d, long long delay_ns) {
    if (d->count == d->room) {
        d->room = d->room ? d->room * 2 : 1 << 16;
        d->values = realloc(d->values, d->room * sizeof *d->values);
    }
    d->values[d->count++] = delay_ns / 1e6;
}

static void want(Connection *c, int operation, unsigned events) {
    struct epoll_event wanted = {.events = events, .data.ptr = c};
    epoll_ctl(epoll_fd, operation, c->fd, &wanted);
}

static void connect_to_proxy(Connection *c) {
    int one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (connect(c->fd, (void *)&address, sizeof address)) {
        perror("load: connect");
        exit(1);
    }
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    want(c, EPOLL_CTL_ADD, EPOLLIN);
}

static void send_more(Connection *c) {
    while (c->sent < request_bytes) {
        int sent = send(c->fd, request + c->sent, request_bytes - c->sent,
                        MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            if (errno == EAGAIN) want(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            return;
        }
        c->sent += sent;
    }
    want(c, EPOLL_CTL_MOD, EPOLLIN);
}

static void begin(Connection *c, long long due_ns) {
    c->busy = 1;
    c->due_ns = due_ns;
    c->status = c->in_body = c->sent = c->done_seen = c->line_bytes = 0;
    c->body_left = 0;
    while (c->sent < request_bytes) {
        int sent = send(c->fd, request + c->sent, request_bytes - c->sent,
                        MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent < 0) {
            if (errno == EAGAIN) want(c, EPOLL_CTL_MOD, EPOLLIN | EPOLLOUT);
            return;
        }
        c->sent += sent;
    }
}

/* An answer is over: count it, and ask again or rest. */
static void finish(Connection *c, long long now) {
    c->busy = 0;
    if (c->status == 200) {
        answered++;
        note(&answer_delays, now - c->due_ns);
    } else {
        failed++;
    }
    if (interval_ns) idle[idle_count++] = c - connections;
    else if (now < end_ns) begin(c, now);
}

static void restart(Connection *c, long long now) {
    broken++;
    close(c->fd);
    if (now >= end_ns || broken > 1000) {
        c->busy = 0;
        return;
    }
    connect_to_proxy(c);
    begin(c, now);
}

/* One line of head or of a stream's body. Returns 1 when the answer is complete. */
static int take_line(Connection *c, long long now) {
    c->line[c->line_bytes] = 0;
    if (!c->in_body) {
        if (!strncmp(c->line, "HTTP/1.1 ", 9)) c->status = atoi(c->line + 9);
        else if (!strncasecmp(c->line, "content-length:", 15)) c->body_left = atoll(c->line + 15);
        else if (!strcmp(c->line, "\r")) {
            c->in_body = 1;
            return !streams && c->body_left == 0;
        }
        return 0;
    }
    if (!strncmp(c->line, "data: {", 7)) {
        char *clock = strstr(c->line, "\"t\":");
        if (clock) {
            events_seen++;
            if (now < end_ns) note(&event_delays, now - atoll(clock + 4));
        }
    } else if (!strcmp(c->line, "data: [DONE]")) {
        c->done_seen = 1;
    } else if (c->done_seen && !strcmp(c->line, "0\r")) {
        c->done_seen = 2;
    } else if (c->done_seen == 2 && !strcmp(c->line, "\r")) {
        return 1;
    }
    return 0;
}

static void take(Connection *c, const char *data, int size, long long now) {
    for (int i = 0; i < size; i++) {
        if (c->in_body && c->body_left) {
            long long part = size - i < c->body_left ? size - i : c->body_left;
            c->body_left -= part;
            i += part - 1;
            if (!c->body_left) finish(c, now);
            continue;
        }
        if (data[i] != '\n') {
            if (c->line_bytes < LINE_BYTES - 1) c->line[c->line_bytes++] = data[i];
            continue;
        }
        int complete = take_line(c, now);
        c->line_bytes = 0;
        if (complete) finish(c, now);
    }
}

static void make_request(int body_bytes, int stream_events, double rate, const char *key,
                         const char *model) {
    char options[128] = "";
    if (streams)
        sprintf(options, "\"stream\":true,\"max_tokens\":%d,\"rate\":%g,", stream_events, rate);
    char *body = malloc(body_bytes + strlen(model) + 512);
    int size = sprintf(body, "{\"model\":\"%s\",%s\"messages\":[{\"role\":\"user\",\"content\":\"",
                       model, options);
    static const char words[] = "the quick brown fox jumps over the \\\"lazy\\\" dog, ";
    while (size + (int)sizeof words + 4 < body_bytes) size += sprintf(body + size, "%s", words);
    size += sprintf(body + size, "\"}]}");
    request = malloc(size + strlen(key) + 512);
    request_bytes = sprintf(request,
        "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nUser-Agent: load\r\n"
        "Accept: application/json\r\nAuthorization: Bearer %s\r\n"
        "Content-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", port, key, size, body);
    free(body);
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double percentile(Delays *d, double share) {
    return d->count ? d->values[(long)(share * (d->count - 1))] : -1;
}

/* Starts what is due. Returns milliseconds to wait at most. */
static int start_due(long long now) {
    if (interval_ns) {
        while (idle_count && next_arrival_ns <= now && next_arrival_ns < end_ns) {
            begin(&connections[idle[--idle_count]], next_arrival_ns);
            next_arrival_ns += interval_ns;
        }
        return idle_count && next_arrival_ns < end_ns ? 1 : 20;
    }
    int waiting = 0;
    for (int i = 0; i < connection_count; i++) {
        Connection *c = &connections[i];
        if (!c->start_ns) continue;
        if (c->start_ns > now) waiting = 1;
        else {
            c->start_ns = 0;
            if (now < end_ns) begin(c, now);
        }
    }
    return waiting ? 1 : 20;
}

int main(int argc, char **argv) {
    if (argc != 8 && argc != 10) return 2;
    prctl(PR_SET_PDEATHSIG, 9);
    port = atoi(argv[1]);
    connection_count = atoi(argv[2]);
    double seconds = atof(argv[3]), arrivals = atof(argv[5]), rate = atof(argv[7]);
    int stream_events = atoi(argv[6]);
    streams = stream_events > 0;
    make_request(atoi(argv[4]), stream_events, rate, argc == 10 ? argv[8] : "sk-test-key",
                 argc == 10 ? argv[9] : "m");
    epoll_fd = epoll_create1(0);
    connections = calloc(connection_count, sizeof *connections);
    idle = malloc(connection_count * sizeof *idle);
    for (int i = 0; i < connection_count; i++) connect_to_proxy(&connections[i]);
    long long begin_ns = now_ns(), length_ns = rate > 0 ? stream_events / rate * SECOND_NS : 0;
    end_ns = begin_ns + (long long)(seconds * SECOND_NS);
    interval_ns = arrivals > 0 ? (long long)(SECOND_NS / arrivals) : 0;
    next_arrival_ns = begin_ns + interval_ns;
    for (int i = 0; i < connection_count; i++) {
        if (interval_ns) idle[idle_count++] = i;
        else connections[i].start_ns = begin_ns + 1 + (streams ? length_ns * i / connection_count : 0);
    }
    struct epoll_event events[EVENTS_MAX];
    static char data[READ_BYTES];
    for (;;) {
        long long now = now_ns();
        int wait_ms = start_due(now), busy = 0;
        if (now >= end_ns) {
            for (int i = 0; i < connection_count && !busy; i++) busy = connections[i].busy;
            if (!busy || now >= end_ns + GRACE_NS) break;
        }
        int count = epoll_wait(epoll_fd, events, EVENTS_MAX, wait_ms);
        for (int i = 0; i < count; i++) {
            Connection *c = events[i].data.ptr;
            if (events[i].events & EPOLLOUT) send_more(c);
            if (!(events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))) continue;
            int got = recv(c->fd, data, sizeof data, MSG_DONTWAIT);
            if (got > 0) take(c, data, got, now_ns());
            else if (got == 0 || errno != EAGAIN) restart(c, now_ns());
        }
    }
    double took = (now_ns() - begin_ns) / 1e9;
    qsort(answer_delays.values, answer_delays.count, sizeof(double), by_value);
    qsort(event_delays.values, event_delays.count, sizeof(double), by_value);
    printf("{\"answered\":%ld,\"failed\":%ld,\"broken\":%ld,\"events\":%ld,\"took_s\":%.4f,"
           "\"p50_ms\":%.4f,\"p99_ms\":%.4f,\"event_count\":%ld,\"event_p50_ms\":%.4f,"
           "\"event_p99_ms\":%.4f}\n",
           answered, failed, broken, events_seen, took, percentile(&answer_delays, .5),
           percentile(&answer_delays, .99), event_delays.count, percentile(&event_delays, .5),
           percentile(&event_delays, .99));
    return 0;
}
