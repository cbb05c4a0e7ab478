/*
 * A KV cache with prefix caching, behind the protocol of lab-17: a JSON object per line in, one out.
 * The numbers in the comments are the sentences of the contract. Three structures carry it:
 *   blocks    an array. The free ones are linked to a ring, so that a hit can take one out of its middle.
 *   prefixes  a tree. A node stands for a block's tokens and all tokens before them: it is the block hash.
 *   requests  their tokens, their table, and the blocks that their last lookup found.
 */
#define _POSIX_C_SOURCE 200809L    /* for getline */
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct list { long *item; int count, room; };

struct block {
    struct block *before, *after;   /* neighbours in the free queue */
    struct prefix *prefix;          /* its block hash, or NULL */
    struct block *twin;             /* the next one that got the same block hash */
    int users;                      /* in how many tables it is: free if in none (11) */
};

struct prefix {
    struct prefix *child, *sibling;
    struct block *holder;           /* the blocks with this hash; the first that got it is in front (9) */
    int number;
    size_t size;
    char label[];                   /* the bytes of a block's tokens, or the text of a salt or an adapter */
};

struct request {
    struct request *next;
    const char *name;               /* as JSON text, with its quotes */
    struct prefix *realm;           /* where its prefixes begin: one node for each pair of salt and lora (18) */
    struct list tokens, table, hit;
};

struct chunk { struct chunk *next; max_align_t memory[]; };

static struct cache {
    struct block *block;            /* block 0 is never free (1), so it serves as head of the ring of free ones */
    int num_blocks, num_free, num_prefixes;
    long block_size;
    bool caching;
    struct prefix *root;
    struct request *requests;
    struct chunk *chunks;
} cache;

/* Memory. All of it lives until the next start, so nothing else has to be given back. */

static void *take(size_t size)
{
    struct chunk *chunk = calloc(1, sizeof *chunk + size);
    if (!chunk)
        abort();
    chunk->next = cache.chunks;
    cache.chunks = chunk;
    return chunk->memory;
}

static void push(struct list *list, long item)
{
    if (list->count == list->room) {
        list->room = 2 * list->room + 8;
        long *larger = take(list->room * sizeof item);
        if (list->count)
            memcpy(larger, list->item, list->count * sizeof item);
        list->item = larger;
    }
    list->item[list->count++] = item;
}

/* JSON. A value is a pointer to its first character in the line. Nothing is copied, unknown members are passed over. */

static const char *skip_space(const char *p)
{
    return p + strspn(p, " \t\r\n,:");     /* commas and colons tell nothing that the order does not tell */
}

static const char *skip_value(const char *p);

/* To walk through a list, or through names and values in turn: first, then next while there are more. */
static const char *first(const char *value) { return *value == '[' || *value == '{' ? skip_space(value + 1) : ""; }
static const char *next(const char *p) { return skip_space(skip_value(p)); }
static bool more(const char *p) { return *p && *p != ']' && *p != '}'; }

static const char *skip_value(const char *p)
{
    if (*p == '"') {
        for (p++; *p && *p != '"'; p++)
            p += *p == '\\' && p[1];
        return p + (*p == '"');
    }
    if (*p != '[' && *p != '{')
        return p + strcspn(p, "]}, :\t\r\n");
    for (p = first(p); more(p); p = next(p))
        ;
    return p + (*p != '\0');
}

static size_t length(const char *value) { return skip_value(value) - value; }

static bool is(const char *value, const char *text)
{
    return *value == '"' && length(value) == strlen(text) + 2 && !strncmp(value + 1, text, strlen(text));
}

/* What is absent reads as null. As a number that is 0. */
static const char *member(const char *object, const char *name)
{
    for (const char *p = first(object); more(p); p = next(next(p)))
        if (is(p, name))
            return next(p);
    return "null";
}

static long number(const char *object, const char *name) { return strtol(member(object, name), NULL, 10); }

/* The free queue */

static void enqueue(struct block *b, struct block *before)
{
    b->before = before;
    b->after = before->after;
    b->before->after = b->after->before = b;
    cache.num_free++;
}

static void dequeue(struct block *b)
{
    b->before->after = b->after;
    b->after->before = b->before;
    cache.num_free--;
}

/* Block hashes. Equal tokens after an equal parent are the same node, others never are (5). */

static struct prefix *child(struct prefix *parent, const void *label, size_t size, bool make)
{
    struct prefix *p = parent->child;
    while (p && (p->size != size || memcmp(p->label, label, size)))
        p = p->sibling;
    if (!p && make) {
        p = take(sizeof *p + size);
        p->number = cache.num_prefixes++;
        p->size = size;
        memcpy(p->label, label, size);
        p->sibling = parent->child;
        parent->child = p;
    }
    return p;
}

/* The pointer to b in the list of a prefix's holders. With NULL for b: the end of the list. */
static struct block **link_to(struct prefix *prefix, const struct block *b)
{
    struct block **link = &prefix->holder;
    while (*link != b)
        link = &(*link)->twin;
    return link;
}

/* The calls */

/* Finds nodes and makes none: it is a question (8). The token that is left over has to be computed (7). */
static long lookup(struct request *r)
{
    struct prefix *p = r->realm;
    r->hit.count = 0;
    for (long at = 0; at + cache.block_size < r->tokens.count; at += cache.block_size) {
        p = child(p, r->tokens.item + at, cache.block_size * sizeof(long), false);
        if (!p || !p->holder)
            break;
        push(&r->hit, p->holder - cache.block);
    }
    return r->hit.count * cache.block_size;
}

static void use(struct request *r, struct block *b)
{
    if (b->users++ == 0)
        dequeue(b);
    push(&r->table, b - cache.block);
}

/* Gives a hash to the blocks that the first `count` tokens fill (4). Those of a hit have one. */
static void cache_full_blocks(struct request *r, long count)
{
    struct prefix *p = r->realm;
    for (long i = 0; i < count / cache.block_size; i++) {
        struct block *b = &cache.block[r->table.item[i]];
        p = child(p, r->tokens.item + i * cache.block_size, cache.block_size * sizeof(long), true);
        if (!b->prefix) {
            b->prefix = p;
            *link_to(p, NULL) = b;
        }
    }
}

static bool allocate(struct request *r, long count, bool adopt)
{
    int adopted = adopt ? r->hit.count : 0;
    long fresh = (count + cache.block_size - 1) / cache.block_size - r->table.count - adopted;
    long needed = fresh > 0 ? fresh : 0;
    for (int i = 0; i < adopted; i++)
        needed += cache.block[r->hit.item[i]].users == 0;
    if (needed > cache.num_free)
        return false;
    /* First the whole hit. Otherwise a new block could be one of its free blocks (14). */
    for (int i = 0; i < adopted; i++)
        use(r, &cache.block[r->hit.item[i]]);
    for (; fresh > 0; fresh--) {
        struct block *b = cache.block->after;
        if (b->prefix)
            *link_to(b->prefix, b) = b->twin;
        b->prefix = NULL;       /* The only place where a block loses its hash (15). */
        b->twin = NULL;
        use(r, b);
    }
    if (cache.caching)
        cache_full_blocks(r, count < r->tokens.count ? count : r->tokens.count);
    return true;
}

static void free_table(struct request *r)
{
    struct block *last = cache.block;       /* The next one for the front goes behind the last one (13). */
    while (r->table.count > 0) {
        struct block *b = &cache.block[r->table.item[--r->table.count]];
        if (--b->users > 0)
            continue;
        enqueue(b, b->prefix ? cache.block->before : last);
        last = b->prefix ? last : b;
    }
}

static void append(struct request *r, const char *tokens)
{
    for (const char *p = first(tokens); more(p); p = next(p))
        push(&r->tokens, strtol(p, NULL, 10));
}

static struct request *find_request(const char *name)
{
    struct request *r = cache.requests;
    while (r && (length(r->name) != length(name) || strncmp(r->name, name, length(name))))
        r = r->next;
    return r;
}

static void new_request(const char *message)
{
    const char *name = member(message, "request"), *salt = member(message, "salt"), *lora = member(message, "lora");
    struct request *r = find_request(name);
    if (!r) {
        r = take(sizeof *r);
        r->name = memcpy(take(length(name) + 1), name, length(name));
        r->next = cache.requests;
        cache.requests = r;
    }
    r->realm = child(child(cache.root, salt, length(salt), true), lora, length(lora), true);
    r->tokens.count = r->hit.count = 0;     /* The name of a freed request may come again. */
    append(r, member(message, "tokens"));
}

static void start(const char *settings)
{
    for (struct chunk *c = cache.chunks, *after; c; c = after) {
        after = c->next;
        free(c);
    }
    cache = (struct cache){ .num_blocks = number(settings, "num_blocks") };
    cache.block_size = number(settings, "block_size");
    cache.caching = *member(settings, "enable_caching") != 'f';
    cache.root = take(sizeof *cache.root);
    cache.block = take(cache.num_blocks * sizeof *cache.block);
    cache.block->before = cache.block->after = cache.block;
    for (int i = 1; i < cache.num_blocks; i++)
        enqueue(&cache.block[i], cache.block->before);
}

static bool is_built(const char *needs)
{
    for (const char *p = first(needs); more(p); p = next(p))
        if (!is(p, "caching off") && !is(p, "salts") && !is(p, "adapters"))
            return false;
    return true;
}

/* The replies */

static void print_state(void)
{
    printf(", \"tables\": {");
    for (struct request *r = cache.requests; r; r = r->next) {
        printf("%s: [[", r->name);
        for (int i = 0; i < r->table.count; i++)
            printf("%s%ld", i ? ", " : "", r->table.item[i]);
        printf("]]%s", r->next ? ", " : "");
    }
    printf("}, \"free\": [");
    for (struct block *b = cache.block->after; b != cache.block; b = b->after)
        printf("%d%s", (int)(b - cache.block), b->after != cache.block ? ", " : "");
    printf("], \"hashes\": [null");
    for (int i = 1; i < cache.num_blocks; i++)
        if (cache.block[i].prefix)
            printf(", \"h%d\"", cache.block[i].prefix->number);
        else
            printf(", null");
    printf("]}\n");
}

/* Prints the result, or returns false where there is none: the call is not built. */
static bool answer(const char *message)
{
    const char *call = member(message, "call"), *settings = member(message, "settings");
    struct request *r = find_request(member(message, "request"));
    long count = number(message, "computed") + number(message, "hit") + number(message, "tokens");
    if (r && is(call, "lookup"))
        return printf("{\"result\": {\"hit\": %ld}", lookup(r));
    if (r && is(call, "allocate"))
        return printf("{\"result\": {\"granted\": %s}",
                      allocate(r, count, *member(message, "hit_of") == '"') ? "true" : "false");
    if (is(call, "start") && is_built(member(settings, "needs")))
        start(settings);
    else if (is(call, "new") && cache.root)
        new_request(message);
    else if (r && is(call, "append"))
        append(r, member(message, "tokens"));
    else if (r && is(call, "free"))
        free_table(r);
    else
        return false;
    return printf("{\"result\": {}");
}

int main(void)
{
    char *line = NULL;
    size_t room = 0;
    while (getline(&line, &room, stdin) > 0) {
        if (answer(skip_space(line)))
            print_state();
        else
            printf("{\"skip\": \"not built\"}\n");
        fflush(stdout);
    }
    free(line);
    return 0;
}
