// Connection management of the kernel's, which says no or is told so.
//   refuser PORT TEXT            waits at PORT, prints `asked PRIVATE-DATA`, and rejects with TEXT
//   refuser PORT TEXT ADDRESS    asks at ADDRESS with TEXT, and prints `rejected STATUS PRIVATE-DATA`
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RESOLVE_MS = 10000 };

static void die(const char *what) {
    printf("error %s: %s\n", what, strerror(errno));
    exit(1);
}

// The next event, which is to be that one.
static struct rdma_cm_event *next(struct rdma_event_channel *channel, enum rdma_cm_event_type wanted) {
    struct rdma_cm_event *event;
    if (rdma_get_cm_event(channel, &event)) die("wait");
    if (event->event != wanted) die(rdma_event_str(event->event));
    return event;
}

static void say(const char *what, const struct rdma_cm_event *event) {
    const struct rdma_conn_param *said = &event->param.conn;
    printf("%s %d %.*s\n", what, event->status, said->private_data_len, (const char *)said->private_data);
}

static void refuse(struct rdma_event_channel *channel, struct rdma_cm_id *id, struct sockaddr_in *port, const char *text) {
    if (rdma_bind_addr(id, (struct sockaddr *)port) || rdma_listen(id, 1)) die("listen");
    printf("waits\n");
    struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_CONNECT_REQUEST);
    say("asked", event);
    struct rdma_cm_id *asked = event->id;
    rdma_ack_cm_event(event);
    if (rdma_reject(asked, text, strlen(text))) die("reject");
    rdma_destroy_id(asked);
}

static void ask(struct rdma_event_channel *channel, struct rdma_cm_id *id, struct sockaddr_in *place, const char *text) {
    if (rdma_resolve_addr(id, NULL, (struct sockaddr *)place, RESOLVE_MS)) die("resolve the address");
    rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ADDR_RESOLVED));
    if (rdma_resolve_route(id, RESOLVE_MS)) die("resolve the route");
    rdma_ack_cm_event(next(channel, RDMA_CM_EVENT_ROUTE_RESOLVED));
    struct ibv_qp_init_attr attributes = {
        .qp_type = IBV_QPT_RC,
        .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
    if (rdma_create_qp(id, NULL, &attributes)) die("make a queue pair");
    struct rdma_conn_param wanted = {
        .private_data = text, .private_data_len = strlen(text), .retry_count = 7, .rnr_retry_count = 7};
    if (rdma_connect(id, &wanted)) die("connect");
    struct rdma_cm_event *event = next(channel, RDMA_CM_EVENT_REJECTED);
    say("rejected", event);
    rdma_ack_cm_event(event);
    rdma_destroy_qp(id);
}

int main(int count, char **arguments) {
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (count != 3 && count != 4) die("understand the arguments");
    struct sockaddr_in place = {.sin_family = AF_INET, .sin_port = htons(strtoul(arguments[1], NULL, 0))};
    if (count == 4 && inet_pton(AF_INET, arguments[3], &place.sin_addr) != 1) die("understand the address");
    struct rdma_event_channel *channel = rdma_create_event_channel();
    struct rdma_cm_id *id;
    if (!channel || rdma_create_id(channel, &id, NULL, RDMA_PS_TCP)) die("open rdma_cm");
    (count == 4 ? ask : refuse)(channel, id, &place, arguments[2]);
    rdma_destroy_id(id);
    printf("over\n");
    return 0;
}
