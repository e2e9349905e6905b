/* Prints what the headers of rdma-core say about what rows.inc asks for, a line for each: a structure's
 * field with its offset and size, a structure with its size, or a constant with its value. */
#include <infiniband/verbs.h>
#include <rdma/rdma_cma.h>
#include <stddef.h>
#include <stdio.h>

#define FIELD(type, field) printf("%s %s %zu %zu\n", #type, #field, offsetof(type, field), sizeof(((type *)0)->field));
#define WHOLE(type) printf("%s %zu\n", #type, sizeof(type));
#define VALUE(name) printf("%s %lld\n", #name, (long long)(name));

int main(void) {
#include "rows.inc"
    return 0;
}
