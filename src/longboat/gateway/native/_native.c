/* Leaf work of the gateway that each request and each token pays for, compiled.
 *
 * scan: what body.read_facts says of a chat or completions request, in one pass, or nothing where anything is out of
 * the ordinary. It must never say something else than read_facts would: where it cannot be sure, it returns None.
 * Histogram, TokenLog, ChunkPath: the way of nearly every token from an engine to a client.
 * counts_at: the tokens that an ordinary answer, or its event of usage, tells. Nothing where usage.py must look itself.
 * head_of: a head by which others like it are known.
 * whole_chunks: the body of what is whole chunks and nothing else.
 * spliced: a body with other bytes at its beginning and in place of its model's name.
 * json_line: a line of JSON with known keys.
 * named: a named tuple.
 */

#define _GNU_SOURCE /* memmem */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <structmember.h>

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#define INTERFACE 14 /* as leaf_work.py expects it */

enum {
    MAX_BODY_BYTES = 4 * 1024 * 1024, /* above, strict_json counts marks */
    MAX_DEPTH = 32,
    MAX_MEMBERS = 64, /* of one object */
    MAX_KEYS = 512,   /* of all objects that are open at a time */
    MAX_SMALL_DIGITS = 9,
    MESSAGE_CHARS = 16,
    TOKEN_CHARS = 4,
    MEDIA_CHARS = 4000,
    COMPLETION_LIMIT_TOKENS = 16,
};

/* ---- JSON values ------------------------------------------------------------------------------------------------ */

typedef enum { NO_VALUE, NULL_VALUE, FALSE_VALUE, TRUE_VALUE, INTEGER, FLOAT, STRING, ARRAY, OBJECT } Kind;

/* A part of the body: a string's content between its quotes. */
typedef struct {
    const uint8_t *at;
    Py_ssize_t bytes;
    bool plain; /* without escapes */
    bool ascii;
} Span;

typedef int64_t Count;
#define UNKNOWN ((Count)-1)

/* What is kept of one value. Counts that cannot be told are UNKNOWN, and so is every sum with one of them. */
typedef struct {
    Kind kind;
    Kind usage;       /* an object's include_usage */
    Kind user_kind;   /* an object's user_id */
    bool ids;         /* an array that begins with an integer */
    Span span;        /* a string's content; an object's user_id */
    Count chars;      /* as prompt_size._text counts */
    Count parts;      /* an array's elements, each as prompt_size._text counts */
    Count num_items;  /* of an array */
    Count json_bytes; /* as orjson would write it */
    Count number;     /* a small integer that is not negative, else UNKNOWN */
} Value;

typedef struct {
    const uint8_t *p;   /* the next byte; the byte at the end is a NUL that no bytes object is without */
    const uint8_t *end; /* where that NUL is */
    int num_keys;
    Span keys[MAX_KEYS];
} Reader;

static bool read_value(Reader *r, int depth, Value *v);

static inline Count plus(Count a, Count b) { return a == UNKNOWN || b == UNKNOWN ? UNKNOWN : a + b; }

static inline void skip_space(Reader *r) {
    while (*r->p == ' ' || *r->p == '\n' || *r->p == '\r' || *r->p == '\t') r->p++;
}

static inline bool is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

/* ---- strings ---- */

static inline bool is_plain(uint8_t c) { return c >= 0x20 && c < 0x80 && c != '"' && c != '\\'; }

#if defined(__SSE2__)
/* Which of the 16 bytes at p are not plain. */
static inline __m128i special_in(const uint8_t *p) {
    __m128i text = _mm_loadu_si128((const __m128i *)(const void *)p);
    __m128i marks = _mm_or_si128(_mm_cmpeq_epi8(text, _mm_set1_epi8('"')), _mm_cmpeq_epi8(text, _mm_set1_epi8('\\')));
    return _mm_or_si128(marks, _mm_cmplt_epi8(text, _mm_set1_epi8(0x20))); /* not ASCII: below 0 */
}
#endif

/* The first byte that is a quote, a backslash, a control character or not ASCII. */
static inline const uint8_t *plain_end(const uint8_t *p, const uint8_t *end) {
#if defined(__SSE2__)
    if (end - p >= 16) { /* most strings end here */
        int bits = _mm_movemask_epi8(special_in(p));
        if (bits) return p + __builtin_ctz((unsigned)bits);
        p += 16;
    }
    while (end - p >= 64 && !_mm_movemask_epi8(_mm_or_si128(_mm_or_si128(special_in(p), special_in(p + 16)),
                                                            _mm_or_si128(special_in(p + 32), special_in(p + 48))))) {
        p += 64;
    }
    for (; end - p >= 16; p += 16) {
        int bits = _mm_movemask_epi8(special_in(p));
        if (bits) return p + __builtin_ctz((unsigned)bits);
    }
#elif defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    const uint64_t ones = 0x0101010101010101u;
    for (; end - p >= 8; p += 8) {
        uint64_t word;
        memcpy(&word, p, 8);
        /* The high bit of a byte is set where it is special; a borrow sets it wrongly only above such a byte. */
        uint64_t special = word | (word - ones * 0x20) | ((word ^ ones * '"') - ones) | ((word ^ ones * '\\') - ones);
        special &= ones * 0x80;
        if (special) return p + (__builtin_ctzll(special) >> 3);
    }
#endif
    while (is_plain(*p)) p++; /* the NUL at the end is not plain */
    return p;
}

/* Bytes of the character that begins here, which is not ASCII; 0 if it is not UTF-8. Never looks past the NUL. */
static inline int utf8_bytes(const uint8_t *p) {
    uint8_t c = p[0];
    if (c < 0xC2 || c > 0xF4) return 0;
    if ((p[1] & 0xC0) != 0x80) return 0;
    if (c < 0xE0) return 2;
    if ((p[2] & 0xC0) != 0x80) return 0;
    if (c < 0xF0) {
        if ((c == 0xE0 && p[1] < 0xA0) || (c == 0xED && p[1] > 0x9F)) return 0; /* overlong; a surrogate */
        return 3;
    }
    if ((p[3] & 0xC0) != 0x80) return 0;
    if ((c == 0xF0 && p[1] < 0x90) || (c == 0xF4 && p[1] > 0x8F)) return 0; /* overlong; beyond Unicode */
    return 4;
}

/* The first byte that begins no character of two or three bytes; *inner grows by the bytes that begin none.
 * Stops short of the end, and of whatever is not UTF-8: utf8_bytes goes on from there. */
static inline const uint8_t *wide_end(const uint8_t *p, const uint8_t *end, Count *inner) {
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (end - p >= 4) {
        uint32_t word;
        memcpy(&word, p, 4);
        uint32_t lead = word & 0x200F; /* 0: overlong; 0x200D: a surrogate */
        if ((word & 0xC0C0F0) == 0x8080E0 && lead != 0 && lead != 0x200D) {
            *inner += 2;
            p += 3;
        } else if ((word & 0xC0E0) == 0x80C0 && (word & 0x1E) != 0) {
            *inner += 1;
            p += 2;
        } else {
            break;
        }
    }
#else
    (void)end;
    (void)inner;
#endif
    return p;
}

/* Four hexadecimal digits, or -1. Stops at the first byte that is none. */
static int hex4(const uint8_t *p) {
    int code = 0;
    for (int i = 0; i < 4; i++) {
        uint8_t c = p[i], letter = c | 0x20;
        int digit = is_digit(c) ? c - '0' : letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
        if (digit < 0) return -1;
        code = code * 16 + digit;
    }
    return code;
}

/* Bytes of this character in a string that orjson writes. */
static int written_bytes(int code) {
    if (code == '"' || code == '\\') return 2;
    if (code < 0x20) return code == '\b' || code == '\t' || code == '\n' || code == '\f' || code == '\r' ? 2 : 6;
    return code < 0x80 ? 1 : code < 0x800 ? 2 : 3;
}

/* Bytes of the escape that begins at p, 0 if it is none; *written: bytes of its character as orjson writes it. */
static int escape_bytes(const uint8_t *p, int *written) {
    switch (p[1]) {
    case '"': case '\\': case 'b': case 'f': case 'n': case 'r': case 't':
        *written = 2;
        return 2;
    case '/':
        *written = 1;
        return 2;
    case 'u': {
        int code = hex4(p + 2);
        if (code < 0 || (code >= 0xDC00 && code <= 0xDFFF)) return 0;
        if (code < 0xD800 || code > 0xDFFF) {
            *written = written_bytes(code);
            return 6;
        }
        if (p[6] != '\\' || p[7] != 'u') return 0;
        int low = hex4(p + 8);
        *written = 4;
        return low >= 0xDC00 && low <= 0xDFFF ? 12 : 0;
    }
    default:
        return 0;
    }
}

/* A string; r->p is behind its first quote. */
static bool read_string(Reader *r, Value *v) {
    const uint8_t *start = r->p, *p = start;
    Count inner = 0, grown = 0; /* bytes that begin no character; bytes more when written anew */
    v->span.plain = v->span.ascii = true;
    for (;;) {
        p = plain_end(p, r->end);
        if (*p == '"') break;
        if (*p == '\\') {
            int written = 0, bytes = escape_bytes(p, &written);
            if (bytes == 0) return false;
            v->span.plain = false;
            inner += bytes - 1;
            grown += written - bytes;
            p += bytes;
        } else if (*p >= 0x80) {
            v->span.ascii = false;
            do {
                p = wide_end(p, r->end, &inner);
                if (*p < 0x80) break;
                int bytes = utf8_bytes(p);
                if (bytes == 0) return false;
                inner += bytes - 1;
                p += bytes;
            } while (*p >= 0x80);
        } else {
            return false; /* a control character, or the end */
        }
    }
    v->kind = STRING;
    v->span.at = start;
    v->span.bytes = p - start;
    v->chars = p - start - inner;
    v->json_bytes = p - start + grown + 2;
    r->p = p + 1;
    return true;
}

/* ---- numbers ---- */

/* Whether orjson writes a number without exponent just as it stands there: short, no zero to spare, no tiny one. */
static bool is_shortest(const uint8_t *digits, Py_ssize_t whole, Py_ssize_t fraction) {
    const uint8_t *decimals = digits + whole + 1;
    if (whole + fraction > 15) return false;
    if (decimals[fraction - 1] == '0' && fraction > 1) return false;
    return digits[0] != '0' || decimals[0] != '0' || fraction == 1 || decimals[1] != '0' || decimals[2] != '0';
}

/* A number; one that some parser may read otherwise (long, a large exponent, -0) is none to us. */
static bool read_number(Reader *r, Value *v) {
    const uint8_t *p = r->p;
    Py_ssize_t sign = *p == '-';
    const uint8_t *digits = p += sign;
    if (!is_digit(*p)) return false;
    Count number = 0;
    for (; is_digit(*p); p++) {
        if (p - digits < MAX_SMALL_DIGITS) number = number * 10 + (*p - '0');
    }
    Py_ssize_t whole = p - digits, fraction = 0, exponent = 0;
    if ((digits[0] == '0' && whole > 1) || whole > 19 - sign) return false;
    if (*p == '.') {
        const uint8_t *decimals = ++p;
        while (is_digit(*p)) p++;
        fraction = p - decimals;
        if (fraction == 0 || fraction > 30) return false;
    }
    if (*p == 'e' || *p == 'E') {
        p++;
        if (*p == '+' || *p == '-') p++;
        const uint8_t *powers = p;
        while (is_digit(*p)) p++;
        exponent = p - powers;
        if (exponent == 0 || exponent > 2) return false;
    }
    v->kind = fraction || exponent ? FLOAT : INTEGER;
    if (sign && v->kind == INTEGER && digits[0] == '0') return false;
    v->chars = 0;
    v->number = v->kind == INTEGER && !sign && whole <= MAX_SMALL_DIGITS ? number : UNKNOWN;
    bool exact = !exponent && (!fraction || is_shortest(digits, whole, fraction));
    v->json_bytes = exact ? p - r->p : UNKNOWN;
    r->p = p;
    return true;
}

static bool read_word(Reader *r, Value *v, const char *word, Py_ssize_t bytes, Kind kind) {
    if (r->end - r->p < bytes || memcmp(r->p, word, (size_t)bytes) != 0) return false;
    r->p += bytes;
    v->kind = kind;
    v->chars = 0;
    v->json_bytes = bytes;
    return true;
}

/* ---- arrays and objects ---- */

static bool read_array(Reader *r, int depth, Value *v) {
    Count parts = 0, json_bytes = 2, num_items = 0;
    v->kind = ARRAY;
    v->ids = false;
    r->p++;
    skip_space(r);
    if (*r->p == ']') {
        r->p++;
    } else {
        for (;;) {
            Value item;
            if (!read_value(r, depth + 1, &item)) return false;
            if (num_items == 0) v->ids = item.kind == INTEGER;
            parts = plus(parts, item.chars);
            json_bytes = plus(json_bytes, plus(item.json_bytes, num_items > 0));
            num_items++;
            skip_space(r);
            uint8_t mark = *r->p++; /* behind the NUL nothing is read: it is no mark */
            if (mark == ']') break;
            if (mark != ',') return false;
            skip_space(r);
        }
    }
    v->num_items = num_items;
    v->parts = parts;
    v->chars = v->ids ? TOKEN_CHARS * num_items : parts;
    v->json_bytes = json_bytes;
    return true;
}

static inline bool is(const Span *key, const char *name, size_t bytes) {
    return (size_t)key->bytes == bytes && memcmp(key->at, name, bytes) == 0;
}
#define IS(key, name) is((key), (name), sizeof(name) - 1)

static bool stands_twice(const Span *keys, int num_keys, const Span *key) {
    Py_ssize_t bytes = key->bytes;
    uint8_t last = key->at[bytes - 1]; /* of an empty key, its first quote */
    for (int i = 0; i < num_keys; i++) {
        if (keys[i].bytes != bytes || keys[i].at[bytes - 1] != last) continue;
        if (memcmp(keys[i].at, key->at, (size_t)bytes) == 0) return true;
    }
    return false;
}

/* A key and its colon. first: where the keys of its object begin. The key stays on the stack. */
static bool read_key(Reader *r, int first, Span *key) {
    if (*r->p != '"') return false;
    const uint8_t *start = ++r->p, *end = plain_end(start, r->end);
    if (*end == '"') {
        *key = (Span){start, end - start, true, true};
        r->p = end + 1;
    } else {
        Value name;
        if (!read_string(r, &name) || !name.span.plain) return false;
        *key = name.span;
    }
    if (r->num_keys - first >= MAX_MEMBERS || r->num_keys >= MAX_KEYS) return false;
    if (stands_twice(r->keys + first, r->num_keys - first, key)) return false;
    r->keys[r->num_keys++] = *key;
    skip_space(r);
    if (*r->p != ':') return false;
    r->p++;
    skip_space(r);
    return true;
}

/* prompt_size._TEXT_KEYS */
static bool is_text_key(const Span *key) {
    switch (key->bytes) {
    case 4: return IS(key, "text") || IS(key, "name");
    case 6: return IS(key, "output");
    case 7: return IS(key, "content") || IS(key, "refusal") || IS(key, "summary");
    case 8: return IS(key, "function") || IS(key, "thinking");
    case 9: return IS(key, "arguments") || IS(key, "reasoning");
    case 10: return IS(key, "tool_calls");
    case 17: return IS(key, "reasoning_content");
    default: return false;
    }
}

/* prompt_size._MEDIA_KEYS */
static bool is_media_key(const Span *key) {
    switch (key->bytes) {
    case 4: return IS(key, "file");
    case 5: return IS(key, "image") || IS(key, "audio") || IS(key, "video");
    case 6: return IS(key, "source");
    case 7: return IS(key, "file_id");
    case 8: return IS(key, "file_url");
    case 9: return IS(key, "image_url") || IS(key, "audio_url") || IS(key, "video_url") || IS(key, "file_data");
    case 11: return IS(key, "input_audio");
    case 12: return IS(key, "image_embeds");
    default: return false;
    }
}

/* prompt_size._JSON_KEYS */
static bool is_json_key(const Span *key) { return IS(key, "input") || IS(key, "parameters"); }

/* What a member counts in prompt_size._part. */
static Count part_chars(const Span *key, const Value *v) {
    if (is_text_key(key)) return v->chars;
    if (is_media_key(key)) return MEDIA_CHARS;
    return is_json_key(key) ? v->json_bytes : 0;
}

static bool read_object(Reader *r, int depth, Value *v) {
    int first = r->num_keys;
    Count chars = 0, json_bytes = 2;
    v->kind = OBJECT;
    v->usage = v->user_kind = NO_VALUE;
    r->p++;
    skip_space(r);
    if (*r->p == '}') {
        r->p++;
    } else {
        for (;;) {
            Span key;
            Value member;
            if (!read_key(r, first, &key) || !read_value(r, depth + 1, &member)) return false;
            chars = plus(chars, part_chars(&key, &member));
            Count marks = 3 + (r->num_keys - first > 1); /* quotes, colon, comma */
            json_bytes = plus(json_bytes, plus(member.json_bytes, key.bytes + marks));
            if (IS(&key, "include_usage")) {
                v->usage = member.kind;
            } else if (IS(&key, "user_id")) {
                v->user_kind = member.kind;
                v->span = member.span;
            }
            skip_space(r);
            uint8_t mark = *r->p++;
            if (mark == '}') break;
            if (mark != ',') return false;
            skip_space(r);
        }
    }
    r->num_keys = first;
    v->chars = chars;
    v->json_bytes = json_bytes;
    return true;
}

static bool read_value(Reader *r, int depth, Value *v) {
    if (depth > MAX_DEPTH) return false;
    v->span = (Span){NULL, 0, false, false};
    switch (*r->p) {
    case '"': r->p++; return read_string(r, v);
    case '{': return read_object(r, depth, v);
    case '[': return read_array(r, depth, v);
    case 'n': return read_word(r, v, "null", 4, NULL_VALUE);
    case 't': return read_word(r, v, "true", 4, TRUE_VALUE);
    case 'f': return read_word(r, v, "false", 5, FALSE_VALUE);
    default: return read_number(r, v);
    }
}

/* ---- what a body asks for ---------------------------------------------------------------------------------------- */

typedef struct {
    bool completions, keyed, spliceable;
    Span model;
    Kind stream, options, usage, user_kind, metadata_user_kind;
    Span user, metadata_user;
    Kind max_tokens_kind, max_completion_tokens_kind, n_kind;
    Count max_tokens, max_completion_tokens, n;
    Count chars, num_prompts;
} Facts;

/* body.FLEET_FIELDS and their prefixes, but cache_salt */
static bool is_fleet_field(const Span *key) {
    if (key->bytes >= 10 && memcmp(key->at, "bootstrap_", 10) == 0) return true;
    if (key->bytes >= 9 && memcmp(key->at, "longboat_", 9) == 0) return true;
    if (key->bytes >= 7 && memcmp(key->at, "disagg_", 7) == 0) return true;
    switch (key->bytes) {
    case 3: return IS(key, "rid");
    case 5: return IS(key, "nvext") || IS(key, "prior");
    case 8: return IS(key, "priority");
    case 10: return IS(key, "request_id") || IS(key, "vllm_xargs");
    case 13: return IS(key, "custom_params");
    case 14: return IS(key, "routed_dp_rank");
    case 18: return IS(key, "data_parallel_rank") || IS(key, "ec_transfer_params") || IS(key, "kv_transfer_params");
    case 22: return IS(key, "custom_logit_processor");
    default: return false;
    }
}

static bool take_integer(const Value *v, Kind *kind, Count *number) {
    *kind = v->kind;
    *number = v->kind == INTEGER ? v->number : 0;
    return v->kind == NULL_VALUE || (v->kind == INTEGER && v->number != UNKNOWN);
}

static bool take_chars(Facts *f, Count chars) {
    f->chars += chars;
    return chars != UNKNOWN;
}

static Count messages_chars(const Value *v) {
    return v->kind == ARRAY ? plus(v->parts, MESSAGE_CHARS * v->num_items) : v->chars;
}

/* prompt_size._as_json */
static Count as_json_bytes(const Value *v) {
    switch (v->kind) {
    case NULL_VALUE: case FALSE_VALUE: return 0;
    case INTEGER: case FLOAT: return UNKNOWN; /* a zero counts nothing, and none of these is ordinary */
    case STRING: case ARRAY: case OBJECT: return v->json_bytes == 2 ? 0 : v->json_bytes;
    default: return v->json_bytes;
    }
}

static bool take_prompt(Facts *f, const Value *v) {
    f->num_prompts = v->kind == ARRAY && v->num_items > 0 && !v->ids ? v->num_items : 1;
    return take_chars(f, v->chars);
}

/* One member of the document; false where it is not for us. */
static bool take_member(Facts *f, const Span *key, const Value *v) {
    switch (key->bytes) {
    case 1:
        return IS(key, "n") ? take_integer(v, &f->n_kind, &f->n) : true;
    case 4:
        if (IS(key, "user")) {
            f->user_kind = v->kind;
            f->user = v->span;
        }
        return true;
    case 5:
        if (IS(key, "model")) f->model = v->span;
        if (IS(key, "model")) return v->kind == STRING && v->span.plain && v->span.bytes > 0;
        if (IS(key, "tools") && !f->completions) return take_chars(f, as_json_bytes(v));
        return !is_fleet_field(key);
    case 6:
        if (IS(key, "stream")) f->stream = v->kind;
        if (IS(key, "stream")) return v->kind >= NULL_VALUE && v->kind <= TRUE_VALUE;
        if (IS(key, "prompt") && f->completions) return take_prompt(f, v);
        return IS(key, "suffix") && f->completions ? take_chars(f, v->chars) : true;
    case 8:
        if (IS(key, "messages") && !f->completions) return take_chars(f, messages_chars(v));
        if (IS(key, "metadata") && v->kind == OBJECT) {
            f->metadata_user_kind = v->user_kind;
            f->metadata_user = v->span;
        }
        break;
    case 10:
        if (IS(key, "max_tokens")) return take_integer(v, &f->max_tokens_kind, &f->max_tokens);
        if (IS(key, "cache_salt")) {
            f->spliceable = false;
            return !f->keyed;
        }
        break;
    case 9:
        if (IS(key, "documents") && !f->completions) return take_chars(f, as_json_bytes(v));
        break;
    case 14:
        if (IS(key, "stream_options")) {
            f->spliceable = false;
            f->options = v->kind;
            f->usage = v->kind == OBJECT ? v->usage : NO_VALUE;
        }
        break;
    case 21:
        if (IS(key, "max_completion_tokens")) {
            return take_integer(v, &f->max_completion_tokens_kind, &f->max_completion_tokens);
        }
        break;
    default:
        break;
    }
    return !is_fleet_field(key);
}

static bool read_document(Reader *r, Facts *f) {
    skip_space(r);
    if (*r->p != '{') return false;
    r->p++;
    skip_space(r);
    for (;;) {
        Span key;
        Value member;
        if (!read_key(r, 0, &key) || !read_value(r, 2, &member) || !take_member(f, &key, &member)) return false;
        skip_space(r);
        uint8_t mark = *r->p++;
        if (mark == '}') break;
        if (mark != ',') return false;
        skip_space(r);
    }
    skip_space(r);
    return r->p == r->end && f->model.at != NULL;
}

/* body._user; false where its text is not at hand. */
static bool find_user(const Facts *f, Span *user) {
    bool own = f->user_kind != NO_VALUE && f->user_kind != NULL_VALUE;
    Kind kind = own ? f->user_kind : f->metadata_user_kind;
    *user = (Span){(const uint8_t *)"", 0, true, true};
    if (kind == STRING) *user = own ? f->user : f->metadata_user;
    return user->plain && user->ascii;
}

/* Whether the client asked for usage in its stream; false in *valid where read_facts refuses. */
static bool finds_usage(const Facts *f, bool *valid) {
    if (f->stream != TRUE_VALUE) return false;
    *valid = f->options == NO_VALUE || f->options == NULL_VALUE || (f->options == OBJECT && f->usage <= TRUE_VALUE);
    return f->options == OBJECT && f->usage == TRUE_VALUE;
}

/* The limit of the completion; UNKNOWN is up to the engine. */
static Count limit_tokens(const Facts *f) {
    if (!f->completions && f->max_completion_tokens_kind == INTEGER) return f->max_completion_tokens;
    if (f->max_tokens_kind == INTEGER) return f->max_tokens;
    return f->completions && f->max_tokens_kind == NO_VALUE ? COMPLETION_LIMIT_TOKENS : UNKNOWN;
}

static PyObject *utf8(const Span *span) { return PyUnicode_DecodeUTF8((const char *)span->at, span->bytes, NULL); }

/* A tuple of these objects, which it takes over; NULL where one of them is missing. */
static PyObject *as_tuple(PyObject **items, Py_ssize_t num_items) {
    PyObject *tuple = PyTuple_New(num_items);
    for (Py_ssize_t i = 0; i < num_items; i++) {
        if (tuple != NULL && items[i] == NULL) Py_CLEAR(tuple);
        if (tuple == NULL) Py_XDECREF(items[i]);
        else PyTuple_SET_ITEM(tuple, i, items[i]);
    }
    return tuple;
}

enum { KEPT_NAMES = 16, MAX_KEPT_NAME_BYTES = 256 };

/* Names of models that bodies had of late: their hashes are known. */
static PyObject *kept_names[KEPT_NAMES];

static PyObject *name_of(const Span *span) {
    if (!span->ascii || span->bytes == 0 || span->bytes > MAX_KEPT_NAME_BYTES) return utf8(span);
    PyObject **kept = &kept_names[(span->bytes + 5 * span->at[0] + 3 * span->at[span->bytes - 1]) % KEPT_NAMES];
    if (*kept == NULL || PyUnicode_GET_LENGTH(*kept) != span->bytes ||
        memcmp(PyUnicode_DATA(*kept), span->at, (size_t)span->bytes) != 0) {
        PyObject *name = utf8(span);
        if (name == NULL) return NULL;
        Py_XSETREF(*kept, name);
    }
    return Py_NewRef(*kept);
}

static PyObject *facts_tuple(const Facts *f, const uint8_t *body) {
    bool valid = true;
    Span user;
    bool wants_usage = finds_usage(f, &valid);
    if (!valid || !find_user(f, &user)) Py_RETURN_NONE;
    Count limit = limit_tokens(f), choices = f->n > 1 ? f->n : 1;
    PyObject *items[] = {
        name_of(&f->model),
        PyBool_FromLong(f->stream == TRUE_VALUE),
        PyBool_FromLong(wants_usage),
        PyLong_FromLongLong((f->chars + 3) / 4),
        PyLong_FromLongLong(f->chars),
        limit == UNKNOWN ? Py_NewRef(Py_None) : PyLong_FromLongLong(limit),
        PyLong_FromLongLong(choices * f->num_prompts),
        utf8(&user),
        PyBool_FromLong(f->spliceable),
        PyLong_FromSsize_t(f->model.at - body),
        PyLong_FromSsize_t(f->model.at - body + f->model.bytes),
    };
    return as_tuple(items, (Py_ssize_t)(sizeof items / sizeof items[0]));
}

static PyObject *scan(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    if (num_args != 3) {
        PyErr_SetString(PyExc_TypeError, "scan takes body, completions and keyed");
        return NULL;
    }
    int completions = PyObject_IsTrue(args[1]), keyed = PyObject_IsTrue(args[2]);
    if (completions < 0 || keyed < 0) return NULL;
    if (!PyBytes_CheckExact(args[0]) || PyBytes_GET_SIZE(args[0]) > MAX_BODY_BYTES) Py_RETURN_NONE;
    Reader r;
    r.p = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    r.end = r.p + PyBytes_GET_SIZE(args[0]);
    r.num_keys = 0;
    Facts f = {.completions = completions, .keyed = keyed, .spliceable = true, .num_prompts = 1};
    if (!read_document(&r, &f)) Py_RETURN_NONE;
    return facts_tuple(&f, (const uint8_t *)PyBytes_AS_STRING(args[0]));
}

/* ---- the tokens that an answer tells ----------------------------------------------------------------------------- */

typedef struct {
    bool has_usage;
    Count prompt, completion, cached; /* UNKNOWN: it does not tell */
    Count num_choices;                /* UNKNOWN: it has no list of them */
} Counts;

static bool read_count(Reader *r, Count *count) {
    Value v;
    if (!read_value(r, 3, &v)) return false;
    *count = v.kind == INTEGER ? v.number : UNKNOWN;
    return v.kind == NULL_VALUE || *count != UNKNOWN;
}

/* Whether another member follows; *valid is false where something else does. */
static bool has_next(Reader *r, bool *valid) {
    skip_space(r);
    uint8_t mark = *r->p++; /* behind the NUL nothing is read: it is no mark */
    *valid = mark == ',' || mark == '}';
    if (mark == ',') skip_space(r);
    return mark == ',';
}

/* The first key of an object, or its end; false where there is neither. */
static bool enter_object(Reader *r, bool *is_empty) {
    if (*r->p != '{') return false;
    r->p++;
    skip_space(r);
    *is_empty = *r->p == '}';
    if (*is_empty) r->p++;
    return true;
}

static bool read_details(Reader *r, Counts *c) {
    int first = r->num_keys;
    bool is_empty, valid = true;
    if (*r->p == 'n') {
        Value v;
        return read_value(r, 3, &v);
    }
    if (!enter_object(r, &is_empty)) return false;
    for (bool more = !is_empty; more; more = has_next(r, &valid)) {
        Span key;
        Value v;
        if (!read_key(r, first, &key)) return false;
        if (IS(&key, "cached_tokens") ? !read_count(r, &c->cached) : !read_value(r, 4, &v)) return false;
    }
    r->num_keys = first;
    return valid;
}

static bool begins(const Span *key, const char *name, Py_ssize_t bytes) {
    return key->bytes >= bytes && memcmp(key->at, name, (size_t)bytes) == 0;
}

/* An object of usage in the words of OpenAI's chat; false where it has others, which usage.py knows. */
static bool read_usage(Reader *r, Counts *c) {
    int first = r->num_keys;
    bool is_empty, valid = true;
    if (!enter_object(r, &is_empty)) return false;
    for (bool more = !is_empty; more; more = has_next(r, &valid)) {
        Span key;
        Value v;
        if (!read_key(r, first, &key)) return false;
        if (IS(&key, "prompt_tokens")) {
            if (!read_count(r, &c->prompt)) return false;
        } else if (IS(&key, "completion_tokens")) {
            if (!read_count(r, &c->completion)) return false;
        } else if (IS(&key, "prompt_tokens_details")) {
            if (!read_details(r, c)) return false;
        } else if (begins(&key, "input_", 6) || begins(&key, "output_", 7) || begins(&key, "cache_", 6)) {
            return false; /* of another API */
        } else if (!read_value(r, 3, &v)) {
            return false;
        }
    }
    r->num_keys = first;
    c->has_usage = valid;
    return valid;
}

static bool read_answer(Reader *r, Counts *c) {
    bool is_empty, valid = true;
    if (!enter_object(r, &is_empty)) return false;
    for (bool more = !is_empty; more; more = has_next(r, &valid)) {
        Span key;
        Value v;
        if (!read_key(r, 0, &key)) return false;
        if (IS(&key, "usage")) {
            if (!read_usage(r, c)) return false;
        } else if (IS(&key, "type") || IS(&key, "response") || IS(&key, "message")) {
            return false; /* of another API */
        } else if (!read_value(r, 2, &v)) {
            return false;
        } else if (IS(&key, "choices")) {
            if (v.kind != ARRAY) return false;
            c->num_choices = v.num_items;
        }
    }
    return valid && c->has_usage && c->completion != UNKNOWN;
}

static PyObject *count_of(Count count) { return count == UNKNOWN ? Py_NewRef(Py_None) : PyLong_FromLongLong(count); }

static PyObject *counts_at(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    if (num_args != 2) {
        PyErr_SetString(PyExc_TypeError, "counts_at takes data and a place in it");
        return NULL;
    }
    Py_ssize_t at = PyLong_AsSsize_t(args[1]);
    if (at == -1 && PyErr_Occurred()) return NULL;
    if (!PyBytes_CheckExact(args[0]) || at < 0 || at > PyBytes_GET_SIZE(args[0])) Py_RETURN_NONE;
    const uint8_t *data = (const uint8_t *)PyBytes_AS_STRING(args[0]);
    Reader r;
    r.p = data + at;
    r.end = data + PyBytes_GET_SIZE(args[0]);
    r.num_keys = 0;
    Counts c = {.prompt = UNKNOWN, .completion = UNKNOWN, .cached = UNKNOWN, .num_choices = UNKNOWN};
    if (!read_answer(&r, &c)) Py_RETURN_NONE;
    PyObject *items[] = {
        PyLong_FromSsize_t(r.p - data),
        PyLong_FromLongLong(c.num_choices),
        count_of(c.prompt),
        count_of(c.completion),
        count_of(c.cached),
    };
    return as_tuple(items, (Py_ssize_t)(sizeof items / sizeof items[0]));
}

/* The last p in data[:bytes] before which ``before`` stands and at which ``mark`` does; NULL: there is none. */
static const uint8_t *last_after(const uint8_t *data, Py_ssize_t bytes, const char *before, uint8_t mark) {
    Py_ssize_t size = (Py_ssize_t)strlen(before);
    while (bytes > size) {
        const uint8_t *p = data + bytes - 1;
        while (p >= data + size && *p != mark) p--;
        if (p < data + size) return NULL;
        if (memcmp(p - size, before, (size_t)size) == 0) return p;
        bytes = p - data;
    }
    return NULL;
}

/* events_in(block): how many events end in it, and whether it has an object of usage. */
static PyObject *events_in(PyObject *module, PyObject *block) {
    (void)module;
    if (!PyBytes_CheckExact(block)) {
        PyErr_SetString(PyExc_TypeError, "events_in takes whole events");
        return NULL;
    }
    static const char key[] = "\"usage\":";
    const uint8_t *data = (const uint8_t *)PyBytes_AS_STRING(block), *end = data + PyBytes_GET_SIZE(block), *p = data;
    const uint8_t *free = data; /* the first byte of no event's end in carriage returns */
    long num = 0, num_returns = 0;
    for (; end - p >= 2 && (p = memchr(p, '\n', (size_t)(end - p - 1))) != NULL; p++) {
        if (p[1] == '\n') {
            num++;
            p++;
        } else if (p > free && p[-1] == '\r' && p[1] == '\r' && p[2] == '\n') {
            num_returns++;
            free = p + 3;
        }
    }
    bool found = false;
    for (p = data; !found && (p = memmem(p, (size_t)(end - p), key, sizeof key - 1)) != NULL;) {
        p += sizeof key - 1;
        found = *p == '{' || (*p == ' ' && p[1] == '{');
    }
    return Py_BuildValue("lO", num ? num : num_returns, found ? Py_True : Py_False);
}

static bool holds_usage(const uint8_t *p, const uint8_t *end) {
    static const char key[] = "\"usage\"";
    const Py_ssize_t size = sizeof key - 1;
    for (p++; end - p >= size - 1 && (p = memchr(p, 'u', (size_t)(end - p - size + 2))) != NULL; p++) {
        if (memcmp(p - 1, key, (size_t)size) == 0) return true;
    }
    return false;
}

static PyObject *take_usage(PyObject *module, PyObject *block) {
    (void)module;
    if (!PyBytes_CheckExact(block)) {
        PyErr_SetString(PyExc_TypeError, "take_usage takes whole events");
        return NULL;
    }
    const uint8_t *data = (const uint8_t *)PyBytes_AS_STRING(block), *end = data + PyBytes_GET_SIZE(block);
    const uint8_t *usage = last_after(data, end - data, "\"usage\":", '{');
    if (usage == NULL) Py_RETURN_NONE;
    const uint8_t *blank = last_after(data, usage - data, "\n", '\n'), *start = blank == NULL ? data : blank + 1;
    if (end - start < 7 || memcmp(start, "data: {", 7) != 0) Py_RETURN_NONE;
    Reader r;
    r.p = start + 6;
    r.end = end;
    r.num_keys = 0;
    Counts c = {.prompt = UNKNOWN, .completion = UNKNOWN, .cached = UNKNOWN, .num_choices = UNKNOWN};
    if (!read_answer(&r, &c) || c.num_choices != 0 || end - r.p < 2 || memcmp(r.p, "\n\n", 2) != 0) Py_RETURN_NONE;
    const uint8_t *rest = r.p + 2;
    if (holds_usage(data, start) || holds_usage(rest, end)) Py_RETURN_NONE;
    PyObject *events = PyBytes_FromStringAndSize(NULL, (start - data) + (end - rest));
    if (events == NULL) return NULL;
    memcpy(PyBytes_AS_STRING(events), data, (size_t)(start - data));
    memcpy(PyBytes_AS_STRING(events) + (start - data), rest, (size_t)(end - rest));
    PyObject *items[] = {events, count_of(c.prompt), count_of(c.completion), count_of(c.cached)};
    return as_tuple(items, 4);
}

/* ---- Histogram --------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    Py_ssize_t num_bounds;
    double *bounds;
    int64_t *counts; /* one more than there are bounds */
    double sum;
} Histogram;

static void histogram_observe(Histogram *histogram, double seconds) {
    Py_ssize_t low = 0, high = histogram->num_bounds;
    while (low < high) { /* bisect_left */
        Py_ssize_t middle = (low + high) / 2;
        if (histogram->bounds[middle] < seconds) low = middle + 1;
        else high = middle;
    }
    histogram->counts[low]++;
    histogram->sum += seconds;
}

static PyObject *Histogram_observe(PyObject *self, PyObject *seconds) {
    double value = PyFloat_AsDouble(seconds);
    if (value == -1.0 && PyErr_Occurred()) return NULL;
    histogram_observe((Histogram *)self, value);
    Py_RETURN_NONE;
}

static PyObject *Histogram_counts(PyObject *self, PyObject *ignored) {
    (void)ignored;
    const Histogram *histogram = (Histogram *)self;
    PyObject *list = PyList_New(histogram->num_bounds + 2);
    for (Py_ssize_t i = 0; list != NULL && i < histogram->num_bounds + 2; i++) {
        bool is_count = i <= histogram->num_bounds;
        PyObject *item = is_count ? PyLong_FromLongLong(histogram->counts[i]) : PyFloat_FromDouble(histogram->sum);
        if (item == NULL) Py_CLEAR(list);
        else PyList_SET_ITEM(list, i, item);
    }
    return list;
}

static void Histogram_dealloc(PyObject *self) {
    PyMem_Free(((Histogram *)self)->bounds);
    PyMem_Free(((Histogram *)self)->counts);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *Histogram_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *bounds;
    if (named != NULL && PyDict_GET_SIZE(named) > 0) {
        PyErr_SetString(PyExc_TypeError, "Histogram takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O!:Histogram", &PyTuple_Type, &bounds)) return NULL;
    Histogram *histogram = (Histogram *)type->tp_alloc(type, 0);
    if (histogram == NULL) return NULL;
    histogram->num_bounds = PyTuple_GET_SIZE(bounds);
    histogram->bounds = PyMem_Calloc((size_t)histogram->num_bounds + 1, sizeof *histogram->bounds);
    histogram->counts = PyMem_Calloc((size_t)histogram->num_bounds + 1, sizeof *histogram->counts);
    if (histogram->bounds == NULL || histogram->counts == NULL) PyErr_NoMemory();
    for (Py_ssize_t i = 0; !PyErr_Occurred() && i < histogram->num_bounds; i++) {
        histogram->bounds[i] = PyFloat_AsDouble(PyTuple_GET_ITEM(bounds, i));
    }
    if (PyErr_Occurred()) Py_CLEAR(histogram);
    return (PyObject *)histogram;
}

static PyMethodDef histogram_methods[] = {
    {"observe", Histogram_observe, METH_O, "Count one time, in seconds."},
    {"counts", Histogram_counts, METH_NOARGS, "A count per bound, one for what is above, the sum."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject HistogramType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "longboat.gateway.native._native.Histogram",
    .tp_basicsize = sizeof(Histogram),
    .tp_dealloc = Histogram_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "A histogram of times in seconds.",
    .tp_methods = histogram_methods,
    .tp_new = Histogram_new,
};

/* ---- TokenLog ---------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    char *sent;
    Py_ssize_t sent_bytes, room_bytes, last_at, max_bytes;
} TokenLog;

#define LEAST_LOG_BYTES 8192
#define MOST_SPARE_BYTES 65536
#define MAX_SPARES 64

/* Buffers of logs that ended, for those that begin: their memory is warm, and large enough for most. */
static struct {
    char *sent;
    Py_ssize_t room_bytes;
} spares[MAX_SPARES];
static int num_spares;

static void let_go(TokenLog *log) {
    if (log->sent != NULL && log->room_bytes <= MOST_SPARE_BYTES && num_spares < MAX_SPARES) {
        spares[num_spares].sent = log->sent;
        spares[num_spares++].room_bytes = log->room_bytes;
    } else {
        PyMem_Free(log->sent);
    }
    log->sent = NULL;
    log->sent_bytes = log->room_bytes = log->last_at = 0;
}

/* Events, added to the others; -1 with an exception where there is no memory. */
static int keep_events(TokenLog *log, const char *events, Py_ssize_t bytes) {
    if (bytes > PY_SSIZE_T_MAX / 4 - log->sent_bytes) {
        PyErr_NoMemory();
        return -1;
    }
    Py_ssize_t needed = log->sent_bytes + bytes;
    if (log->sent == NULL && num_spares > 0) {
        log->sent = spares[--num_spares].sent;
        log->room_bytes = spares[num_spares].room_bytes;
    }
    if (needed > log->room_bytes) {
        Py_ssize_t room = log->room_bytes < LEAST_LOG_BYTES ? LEAST_LOG_BYTES : 2 * log->room_bytes;
        if (room < needed) room = needed;
        char *grown = PyMem_Realloc(log->sent, (size_t)room);
        if (grown == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        log->sent = grown;
        log->room_bytes = room;
    }
    memcpy(log->sent + log->sent_bytes, events, (size_t)bytes);
    log->last_at = log->sent_bytes;
    log->sent_bytes = needed;
    return 0;
}

static PyObject *TokenLog_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    Py_ssize_t max_bytes;
    if (named != NULL && PyDict_GET_SIZE(named) != 0) {
        PyErr_SetString(PyExc_TypeError, "TokenLog takes no named arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "n:TokenLog", &max_bytes)) return NULL;
    TokenLog *log = (TokenLog *)type->tp_alloc(type, 0);
    if (log != NULL) log->max_bytes = max_bytes;
    return (PyObject *)log;
}

static void TokenLog_dealloc(PyObject *self) {
    let_go((TokenLog *)self);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *TokenLog_keep(PyObject *self, PyObject *events) {
    if (!PyBytes_Check(events)) {
        PyErr_SetString(PyExc_TypeError, "events must be bytes");
        return NULL;
    }
    if (keep_events((TokenLog *)self, PyBytes_AS_STRING(events), PyBytes_GET_SIZE(events)) < 0) return NULL;
    Py_RETURN_NONE;
}

static PyObject *TokenLog_take(PyObject *self, PyObject *ignored) {
    (void)ignored;
    TokenLog *log = (TokenLog *)self;
    PyObject *all = PyBytes_FromStringAndSize(log->sent, log->sent_bytes);
    if (all != NULL) let_go(log);
    return all;
}

static PyObject *TokenLog_last(PyObject *self, PyObject *ignored) {
    (void)ignored;
    TokenLog *log = (TokenLog *)self;
    return PyBytes_FromStringAndSize(log->sent == NULL ? NULL : log->sent + log->last_at, log->sent_bytes - log->last_at);
}

static PyObject *TokenLog_all(PyObject *self, PyObject *ignored) {
    (void)ignored;
    TokenLog *log = (TokenLog *)self;
    return PyBytes_FromStringAndSize(log->sent, log->sent_bytes);
}

static PyMethodDef token_log_methods[] = {
    {"keep", TokenLog_keep, METH_O, "These went to the client, as the engine sent them."},
    {"take", TokenLog_take, METH_NOARGS, "All of them, in order; none is left."},
    {"all", TokenLog_all, METH_NOARGS, "All of them, in order."},
    {"last", TokenLog_last, METH_NOARGS, "Those that were kept last."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef token_log_members[] = {
    {"sent_bytes", T_PYSSIZET, offsetof(TokenLog, sent_bytes), READONLY, "bytes of these events"},
    {NULL, 0, 0, 0, NULL},
};

static PyTypeObject TokenLogType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "longboat.gateway.native._native.TokenLog",
    .tp_basicsize = sizeof(TokenLog),
    .tp_dealloc = TokenLog_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Events of a stream with their ids, as its chunks pass.",
    .tp_methods = token_log_methods,
    .tp_members = token_log_members,
    .tp_new = TokenLog_new,
};

/* Bytes of a line ": ids CHOICE ID,ID" that a text begins with, its end included; 0 where it begins otherwise. */
static Py_ssize_t ids_line(const char *text, Py_ssize_t bytes) {
    static const char start[] = ": ids ";
    Py_ssize_t at = sizeof start - 1;
    if (bytes < at || memcmp(text, start, (size_t)at) != 0) return 0;
    while (at < bytes && text[at] != '\n') {
        char c = text[at++];
        if ((c < '0' || c > '9') && c != ' ' && c != ',') return 0;
    }
    return at < bytes ? at + 1 : 0;
}

/* Whether a text that ends with an empty line is one event without a comment. */
static bool is_one_plain_event(const char *text, Py_ssize_t bytes) {
    if (bytes < 3 || text[0] == ':' || text[0] == '\n') return false;
    const char *end = text + bytes;
    for (const char *p = text; (p = memchr(p, '\n', (size_t)(end - p))) != NULL;) {
        p++;
        if (p == end) return false;
        if (*p == ':') return false;
        if (*p == '\n') return p + 1 == end;
    }
    return false;
}

/* ---- ChunkPath --------------------------------------------------------------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *owner; /* these four may be NULL, which Python sees as None */
    PyObject *write;
    PyObject *itl;
    PyObject *journal;
    double last_s;
    long long quiet;
    long long num_events;
    long long bytes_out;
    char direct;
    char between_chunks;
} ChunkPath;

static PyObject *name_data_arrived, *name_observe;

static bool ends_with(const char *data, Py_ssize_t bytes, const char *end, Py_ssize_t end_bytes) {
    return bytes >= end_bytes && memcmp(data + bytes - end_bytes, end, (size_t)end_bytes) == 0;
}

static bool has_usage(const char *data, Py_ssize_t bytes) {
    static const char word[] = "\"usage\"";
    const Py_ssize_t word_bytes = sizeof word - 1;
    const char *last = data + bytes - word_bytes; /* where it may begin at the latest */
    for (const char *p = data; p <= last; p++) {
        p = memchr(p, '"', (size_t)(last - p + 1));
        if (p == NULL) return false;
        if (memcmp(p, word, (size_t)word_bytes) == 0) return true;
    }
    return false;
}

/* The size that a chunk begins with, where it is written as up to four lower-case digits and is small; else 0. */
static Py_ssize_t chunk_size(const char *data, Py_ssize_t bytes, Py_ssize_t *num_digits) {
    Py_ssize_t size = 0, digits = 0;
    for (; digits < 4 && digits < bytes; digits++) {
        char c = data[digits];
        if (c >= '0' && c <= '9') size = size * 16 + (c - '0');
        else if (c >= 'a' && c <= 'f') size = size * 16 + (c - 'a' + 10);
        else break;
    }
    *num_digits = digits;
    return digits == 0 || data[0] == '0' || size > 16383 ? 0 : size;
}

/* As native_twin.size_of_whole_chunk */
static Py_ssize_t size_of_whole_chunk(const char *data, Py_ssize_t bytes) {
    Py_ssize_t digits, size = chunk_size(data, bytes, &digits);
    if (size == 0 || bytes != digits + size + 4) return 0;
    if (data[digits] != '\r' || data[digits + 1] != '\n' || (digits != 3 && data[3] == '\r')) return 0;
    if (ends_with(data, bytes, "}]}\n\n\r\n", 7)) return size;
    return ends_with(data, bytes, "\n\n\r\n", 4) && !has_usage(data, bytes) ? size : 0;
}

static double monotonic_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)((int64_t)now.tv_sec * 1000000000 + now.tv_nsec) / 1e9;
}

/* Whether the time since the last chunk could be counted; else an exception is set. */
static bool count_gap(PyObject *itl, double gap_s) {
    if (itl == NULL || itl == Py_None) return true;
    if (Py_IS_TYPE(itl, &HistogramType)) {
        histogram_observe((Histogram *)itl, gap_s);
        return true;
    }
    PyObject *seconds = PyFloat_FromDouble(gap_s);
    PyObject *done = seconds == NULL ? NULL : PyObject_CallMethodOneArg(itl, name_observe, seconds);
    Py_XDECREF(seconds);
    Py_XDECREF(done);
    return done != NULL;
}

/* The line that begins a chunk of up to 16383 bytes; how long it is. */
static Py_ssize_t chunk_head(char head[8], Py_ssize_t size) {
    Py_ssize_t bytes = 0;
    for (int shift = size > 4095 ? 12 : size > 255 ? 8 : size > 15 ? 4 : 0; shift >= 0; shift -= 4) {
        head[bytes++] = "0123456789abcdef"[(size >> shift) & 15];
    }
    head[bytes++] = '\r';
    head[bytes++] = '\n';
    return bytes;
}

/* What the client gets of a chunk whose body, its last ``size`` bytes but two, is logged: one event with the ids of one choice.
   NULL without an exception where it is not that. size: becomes that of the body that the client gets. */
static PyObject *logged_chunk(TokenLog *log, PyObject *data, Py_ssize_t *size) {
    const char *body = PyBytes_AS_STRING(data) + PyBytes_GET_SIZE(data) - 2 - *size;
    Py_ssize_t line = ids_line(body, *size);
    if (line == 0) return NULL;
    Py_ssize_t rest = *size - line;
    if (!is_one_plain_event(body + line, rest) || *size > log->max_bytes - log->sent_bytes) return NULL;
    char head[8];
    Py_ssize_t head_bytes = chunk_head(head, rest);
    PyObject *chunk = PyBytes_FromStringAndSize(NULL, head_bytes + rest + 2);
    if (chunk == NULL || keep_events(log, body, *size) < 0) {
        Py_XDECREF(chunk);
        return NULL;
    }
    char *to = PyBytes_AS_STRING(chunk);
    memcpy(to, head, (size_t)head_bytes);
    memcpy(to + head_bytes, body + line, (size_t)rest);
    memcpy(to + head_bytes + rest, "\r\n", 2);
    *size = rest;
    return chunk;
}

static PyObject *ChunkPath_data_received(PyObject *self, PyObject *data) {
    ChunkPath *path = (ChunkPath *)self;
    Py_ssize_t size = 0;
    PyObject *chunk = NULL; /* what the client gets */
    if (path->direct && path->between_chunks && path->write != NULL && path->write != Py_None && PyBytes_Check(data)) {
        size = size_of_whole_chunk(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data));
    }
    if (size != 0 && (path->journal == NULL || path->journal == Py_None)) chunk = Py_NewRef(data);
    else if (size != 0 && Py_IS_TYPE(path->journal, &TokenLogType)) {
        PyObject *log = Py_NewRef(path->journal);
        chunk = logged_chunk((TokenLog *)log, data, &size);
        Py_DECREF(log);
        if (chunk == NULL && PyErr_Occurred()) return NULL;
    }
    path->quiet = 0;
    if (chunk == NULL) {
        PyObject *owner = Py_NewRef(path->owner == NULL ? Py_None : path->owner);
        PyObject *taken = PyObject_CallMethodOneArg(owner, name_data_arrived, data);
        Py_DECREF(owner);
        return taken;
    }
    PyObject *write = Py_NewRef(path->write), *itl = Py_XNewRef(path->itl); /* whoever is called may replace them */
    double now_s = monotonic_s(), gap_s = now_s - path->last_s;
    path->last_s = now_s;
    path->num_events++;
    path->bytes_out += size;
    PyObject *done = count_gap(itl, gap_s) ? PyObject_CallOneArg(write, chunk) : NULL;
    Py_DECREF(chunk);
    Py_DECREF(write);
    Py_XDECREF(itl);
    if (done == NULL) return NULL;
    Py_DECREF(done);
    Py_RETURN_NONE;
}

static PyObject *ChunkPath_reset(PyObject *self, PyObject *ignored) {
    (void)ignored;
    ChunkPath *path = (ChunkPath *)self;
    path->direct = path->between_chunks = 0;
    path->quiet = path->num_events = path->bytes_out = 0;
    Py_CLEAR(path->write);
    Py_CLEAR(path->itl);
    Py_CLEAR(path->journal);
    Py_RETURN_NONE;
}

static PyObject *ChunkPath_new(PyTypeObject *type, PyObject *args, PyObject *named) {
    PyObject *owner;
    if (named != NULL && PyDict_GET_SIZE(named) != 0) {
        PyErr_SetString(PyExc_TypeError, "ChunkPath() takes no keyword arguments");
        return NULL;
    }
    if (!PyArg_ParseTuple(args, "O:ChunkPath", &owner)) return NULL;
    PyObject *self = type->tp_alloc(type, 0);
    if (self != NULL) ((ChunkPath *)self)->owner = Py_NewRef(owner);
    return self;
}

static int ChunkPath_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((ChunkPath *)self)->owner);
    Py_VISIT(((ChunkPath *)self)->write);
    Py_VISIT(((ChunkPath *)self)->itl);
    Py_VISIT(((ChunkPath *)self)->journal);
    return 0;
}

static int ChunkPath_clear(PyObject *self) {
    Py_CLEAR(((ChunkPath *)self)->owner);
    Py_CLEAR(((ChunkPath *)self)->write);
    Py_CLEAR(((ChunkPath *)self)->itl);
    Py_CLEAR(((ChunkPath *)self)->journal);
    return 0;
}

static void ChunkPath_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    ChunkPath_clear(self);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef chunk_path_members[] = {
    {"owner", T_OBJECT, offsetof(ChunkPath, owner), 0, "whose data_arrived gets what is not for the short way"},
    {"write", T_OBJECT, offsetof(ChunkPath, write), 0, "what takes a chunk to the client, or None"},
    {"itl", T_OBJECT, offsetof(ChunkPath, itl), 0, "where the times between chunks are counted, or None"},
    {"journal", T_OBJECT, offsetof(ChunkPath, journal), 0, "a TokenLog, None, or what makes every chunk go to data_arrived"},
    {"last_s", T_DOUBLE, offsetof(ChunkPath, last_s), 0, "when the last chunk came, on the monotonic clock"},
    {"quiet", T_LONGLONG, offsetof(ChunkPath, quiet), 0, "the owner's to count up; every byte sets it to 0"},
    {"num_events", T_LONGLONG, offsetof(ChunkPath, num_events), 0, "chunks that went the short way"},
    {"bytes_out", T_LONGLONG, offsetof(ChunkPath, bytes_out), 0, "body bytes in these chunks"},
    {"direct", T_BOOL, offsetof(ChunkPath, direct), 0, "whether whole chunks may go to the client as they come"},
    {"between_chunks", T_BOOL, offsetof(ChunkPath, between_chunks), 0, "whether the next byte begins a chunk"},
    {NULL, 0, 0, 0, NULL},
};

static PyMethodDef chunk_path_methods[] = {
    {"data_received", ChunkPath_data_received, METH_O, "Pass one whole chunk on, or give the data to the owner."},
    {"reset", ChunkPath_reset, METH_NOARGS, "Before a request: as it was made, but for the owner and last_s."},
    {NULL, NULL, 0, NULL},
};

static PyTypeObject ChunkPathType = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "longboat.gateway.native._native.ChunkPath",
    .tp_basicsize = sizeof(ChunkPath),
    .tp_dealloc = ChunkPath_dealloc,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "The way of nearly every token: one whole chunk of whole events, as it came.",
    .tp_traverse = ChunkPath_traverse,
    .tp_clear = ChunkPath_clear,
    .tp_methods = chunk_path_methods,
    .tp_members = chunk_path_members,
    .tp_new = ChunkPath_new,
};

/* ---- head_of ------------------------------------------------------------------------------------------------------ */

enum { MAX_LENGTH_DIGITS = 15 };

/* Where the digits of a well-formed Content-Length line are that begins with the line end at p; NULL: it is none. */
static const char *length_digits(const char *p, const char *end, Py_ssize_t *num_digits) {
    static const char name[] = "\r\nContent-Length: ";
    const Py_ssize_t name_bytes = sizeof name - 1;
    if (end - p <= name_bytes || p[1] != '\n' || (p[2] | 0x20) != 'c' || (p[10] | 0x20) != 'l') return NULL;
    if (memcmp(p + 3, name + 3, 7) != 0 || memcmp(p + 11, name + 11, (size_t)name_bytes - 11) != 0) return NULL;
    const char *digits = p + name_bytes;
    Py_ssize_t count = 0;
    while (count <= MAX_LENGTH_DIGITS && digits + count < end && is_digit((uint8_t)digits[count])) count++;
    if (count == 0 || count > MAX_LENGTH_DIGITS || end - digits < count + 2) return NULL;
    *num_digits = count;
    return digits[count] == '\r' && digits[count + 1] == '\n' ? digits : NULL;
}

/* Where the empty line of a head begins, with the line end before it; NULL where there is none before ``until``.
   digits: of its first Content-Length; NULL: it has none */
static const char *end_of_head(const char *p, const char *until, const char **digits, Py_ssize_t *num_digits) {
    for (; until - p >= 4 && (p = memchr(p, '\r', (size_t)(until - p - 3))) != NULL; p++) {
        if (memcmp(p, "\r\n\r\n", 4) == 0) return p;
        if (*digits == NULL) *digits = length_digits(p, until, num_digits);
    }
    return NULL;
}

enum { KEPT_KEYS = 64 };

/* Keys of heads that came of late: their hashes are known, and a dict finds them without a comparison. */
static PyObject *kept_keys[KEPT_KEYS];

static uint64_t eight_at(const char *p) {
    uint64_t word;
    memcpy(&word, p, sizeof word);
    return word;
}

/* The bytes data[:before] and rest[:after]: the object that was made of them before, or a new one. */
static PyObject *key_of(const char *data, Py_ssize_t before, const char *rest, Py_ssize_t after) {
    uint64_t sample = (uint64_t)(before + after);
    for (Py_ssize_t at = 0; at + 8 <= before; at += 24) sample = (sample ^ eight_at(data + at)) * 0x9e3779b97f4a7c15u;
    for (Py_ssize_t at = 0; at + 8 <= after; at += 24) sample = (sample ^ eight_at(rest + at)) * 0x9e3779b97f4a7c15u;
    PyObject **kept = &kept_keys[sample >> 58];
    if (*kept != NULL && PyBytes_GET_SIZE(*kept) == before + after) {
        const char *key = PyBytes_AS_STRING(*kept);
        if (memcmp(key, data, (size_t)before) == 0 && memcmp(key + before, rest, (size_t)after) == 0) return Py_NewRef(*kept);
    }
    PyObject *key = PyBytes_FromStringAndSize(NULL, before + after);
    if (key == NULL) return NULL;
    memcpy(PyBytes_AS_STRING(key), data, (size_t)before);
    memcpy(PyBytes_AS_STRING(key) + before, rest, (size_t)after);
    Py_XSETREF(*kept, Py_NewRef(key));
    return key;
}

static PyObject *head_of(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    if (num_args != 2 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "head_of(data: bytes, max_bytes: int)");
        return NULL;
    }
    Py_ssize_t max_bytes = PyLong_AsSsize_t(args[1]);
    if (max_bytes == -1 && PyErr_Occurred()) return NULL;
    const char *data = PyBytes_AS_STRING(args[0]);
    Py_ssize_t bytes = PyBytes_GET_SIZE(args[0]);
    if (bytes > max_bytes) bytes = max_bytes;
    Py_ssize_t num_digits = 0, length = -1;
    const char *digits = NULL, *end = end_of_head(data, data + bytes, &digits, &num_digits);
    if (end == NULL) Py_RETURN_NONE;
    Py_ssize_t head_bytes = end - data;
    if (digits == NULL) digits = end, num_digits = 0;
    else {
        length = 0;
        for (Py_ssize_t at = 0; at < num_digits; at++) length = length * 10 + (digits[at] - '0');
    }
    PyObject *key = key_of(data, digits - data, digits + num_digits, end - digits - num_digits);
    if (key == NULL) return NULL;
    PyObject *items[] = {key, PyLong_FromSsize_t(head_bytes + 4), PyLong_FromSsize_t(length)};
    return as_tuple(items, 3);
}

/* ---- whole_chunks ------------------------------------------------------------------------------------------------ */

/* Size of the chunk that data[at:] begins with, where that is whole; else 0.
   next: where what follows it begins; begin: of its body */
static Py_ssize_t chunk_at(const char *data, Py_ssize_t bytes, Py_ssize_t at, Py_ssize_t *begin, Py_ssize_t *next) {
    Py_ssize_t digits, size = chunk_size(data + at, bytes - at, &digits);
    if (size == 0) return 0;
    *begin = at + digits + 2;
    *next = *begin + size + 2;
    if (*next > bytes || data[*begin - 2] != '\r' || data[*begin - 1] != '\n') return 0;
    return data[*next - 2] == '\r' && data[*next - 1] == '\n' ? size : 0;
}

static PyObject *whole_chunks(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    if (num_args != 2 || !PyBytes_Check(args[0])) {
        PyErr_SetString(PyExc_TypeError, "whole_chunks(data: bytes, at: int)");
        return NULL;
    }
    Py_ssize_t first = PyLong_AsSsize_t(args[1]);
    if (first == -1 && PyErr_Occurred()) return NULL;
    const char *data = PyBytes_AS_STRING(args[0]);
    const Py_ssize_t bytes = PyBytes_GET_SIZE(args[0]);
    if (first < 0) Py_RETURN_NONE;
    Py_ssize_t total = 0, begin = 0, next = 0, at = first;
    bool ends = false;
    while (at < bytes) {
        if (bytes - at >= 5 && memcmp(data + at, "0\r\n\r\n", 5) == 0) {
            if (at + 5 != bytes) Py_RETURN_NONE;
            ends = true;
            break;
        }
        Py_ssize_t size = chunk_at(data, bytes, at, &begin, &next);
        if (size == 0) Py_RETURN_NONE;
        total += size;
        at = next;
    }
    const Py_ssize_t end = at;
    PyObject *body = PyBytes_FromStringAndSize(NULL, total);
    if (body == NULL) return NULL;
    char *to = PyBytes_AS_STRING(body);
    for (at = first; at < end; at = next) {
        Py_ssize_t size = chunk_at(data, bytes, at, &begin, &next);
        memcpy(to, data + begin, (size_t)size);
        to += size;
    }
    PyObject *items[] = {body, PyBool_FromLong(ends)};
    return as_tuple(items, 2);
}

/* ---- numbered ---------------------------------------------------------------------------------------------------- */

#define MAX_ID_BYTES 9

/* Bytes of the number in a line "id: NUMBER" that a text begins with; 0 where it begins otherwise. */
static Py_ssize_t id_digits(const char *text, Py_ssize_t bytes) {
    if (bytes < 6 || memcmp(text, "id: ", 4) != 0) return 0;
    Py_ssize_t digits = 0;
    while (digits <= MAX_ID_BYTES && 4 + digits < bytes && text[4 + digits] >= '0' && text[4 + digits] <= '9') digits++;
    return digits <= MAX_ID_BYTES && 4 + digits < bytes && text[4 + digits] == '\n' ? digits : 0;
}

/* Where the event that begins at data[at] ends, its empty line included; 0 where it is none, or holds a comment. */
static Py_ssize_t event_end(const char *data, Py_ssize_t bytes, Py_ssize_t at) {
    if (at >= bytes || data[at] == ':' || data[at] == '\n') return 0;
    while (at < bytes) {
        const char *line = memchr(data + at, '\n', (size_t)(bytes - at));
        if (line == NULL) return 0;
        at = line - data + 1;
        if (at >= bytes || data[at] == ':') return 0;
        if (data[at] == '\n') return at + 1;
    }
    return 0;
}

/* As native_twin.numbered */
static PyObject *numbered(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    static const char done[] = "data: [DONE]\n\n";
    (void)module;
    if (num_args != 3 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[1]) || !PyLong_Check(args[2])) {
        PyErr_SetString(PyExc_TypeError, "numbered takes events, the id before, and how many events had it since");
        return NULL;
    }
    const char *data = PyBytes_AS_STRING(args[0]), *before = PyBytes_AS_STRING(args[1]);
    Py_ssize_t bytes = PyBytes_GET_SIZE(args[0]), before_bytes = PyBytes_GET_SIZE(args[1]), num_events = 0;
    long further = PyLong_AsLong(args[2]);
    if (further == -1 && PyErr_Occurred()) return NULL;
    if (bytes < 2 || data[bytes - 1] != '\n' || data[bytes - 2] != '\n') Py_RETURN_NONE;
    for (const char *p = data; (p = memchr(p, '\n', (size_t)(data + bytes - p))) != NULL; p++) num_events++;
    PyObject *out = PyBytes_FromStringAndSize(NULL, bytes + 12 * num_events); /* a number is longer by less for each line */
    if (out == NULL) return NULL;
    char *to = PyBytes_AS_STRING(out);
    bool told = true; /* by an engine of ours: each event but the last word has ids of tokens before it */
    for (Py_ssize_t at = 0; at < bytes;) {
        Py_ssize_t line = ids_line(data + at, bytes - at), start = at + line, end = event_end(data, bytes, start);
        Py_ssize_t digits = end == 0 ? 0 : id_digits(data + start, end - start);
        bool is_done = end - start == (Py_ssize_t)sizeof done - 1 && memcmp(data + start, done, sizeof done - 1) == 0;
        if (end == 0 || (digits == 0 && !is_done) || further > 999999) {
            Py_DECREF(out);
            Py_RETURN_NONE;
        }
        told = told && (line != 0 || is_done);
        if (digits != 0) {
            const char *id = data + start + 4;
            further = digits == before_bytes && memcmp(id, before, (size_t)digits) == 0 ? further + 1 : 0;
            before = id;
            before_bytes = digits;
            memcpy(to, data + start, (size_t)(4 + digits));
            to += 4 + digits;
            if (further != 0) to += PyOS_snprintf(to, 12, "+%ld", further);
            start += 4 + digits;
        }
        memcpy(to, data + start, (size_t)(end - start));
        to += end - start;
        at = end;
    }
    PyObject *last = PyBytes_FromStringAndSize(before, before_bytes);
    if (last == NULL || _PyBytes_Resize(&out, to - PyBytes_AS_STRING(out)) < 0) {
        Py_XDECREF(last);
        Py_XDECREF(out);
        return NULL;
    }
    return Py_BuildValue("NNlO", out, last, further, told ? Py_True : Py_False);
}

/* ---- bodies and lines that are written --------------------------------------------------------------------------- */

static inline uint8_t *put_bytes(uint8_t *p, const void *from, Py_ssize_t bytes) {
    memcpy(p, from, (size_t)bytes);
    return p + bytes;
}

/* spliced(body, inserted, begin, end, name): "{", inserted, body from behind its "{" to begin, name and body[end:];
 * nothing is left out where begin and end are 0 */
static PyObject *spliced(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    if (num_args != 5 || !PyBytes_Check(args[0]) || !PyBytes_Check(args[1]) || !PyBytes_Check(args[4])) {
        PyErr_SetString(PyExc_TypeError, "spliced takes a body, bytes, two places and bytes");
        return NULL;
    }
    Py_ssize_t begin = PyLong_AsSsize_t(args[2]), end = PyLong_AsSsize_t(args[3]);
    if (PyErr_Occurred()) return NULL;
    Py_ssize_t all = PyBytes_GET_SIZE(args[0]), inserted = PyBytes_GET_SIZE(args[1]), name = PyBytes_GET_SIZE(args[4]);
    const char *brace = memchr(PyBytes_AS_STRING(args[0]), '{', (size_t)all);
    Py_ssize_t first = brace == NULL ? all + 1 : brace + 1 - PyBytes_AS_STRING(args[0]);
    if (begin == 0 && end == 0) begin = end = first;
    if (begin < first || end < begin || end > all) {
        PyErr_SetString(PyExc_ValueError, "the places are not in the body, or in another order");
        return NULL;
    }
    PyObject *made = PyBytes_FromStringAndSize(NULL, 1 + inserted + (begin - first) + name + (all - end));
    if (made == NULL) return NULL;
    const char *body = PyBytes_AS_STRING(args[0]);
    uint8_t *p = (uint8_t *)PyBytes_AS_STRING(made);
    *p++ = '{';
    p = put_bytes(p, PyBytes_AS_STRING(args[1]), inserted);
    p = put_bytes(p, body + first, begin - first);
    p = put_bytes(p, PyBytes_AS_STRING(args[4]), name);
    put_bytes(p, body + end, all - end);
    return made;
}

enum { NUMBER_BYTES = 32 };

static uint8_t *put_digits(uint8_t *p, uint64_t number) {
    uint8_t digits[NUMBER_BYTES], *first = digits + sizeof digits;
    do *--first = (uint8_t)('0' + number % 10);
    while (number /= 10);
    return put_bytes(p, first, digits + sizeof digits - first);
}

/* A number with at most three decimals; null for one that has no such form. */
static uint8_t *put_float(uint8_t *p, double number) {
    if (!(fabs(number) < 1e15)) return put_bytes(p, "null", 4);
    int64_t thousandths = llround(number * 1e3);
    if (thousandths < 0) *p++ = '-';
    uint64_t size = thousandths < 0 ? (uint64_t)-thousandths : (uint64_t)thousandths;
    p = put_digits(p, size / 1000);
    int decimals = (int)(size % 1000);
    *p++ = '.';
    *p++ = (uint8_t)('0' + decimals / 100);
    if (decimals % 100) *p++ = (uint8_t)('0' + decimals / 10 % 10);
    if (decimals % 10) *p++ = (uint8_t)('0' + decimals % 10);
    return p;
}

static uint8_t *put_text(uint8_t *p, const uint8_t *text, Py_ssize_t bytes) {
    static const char hex[] = "0123456789abcdef";
    const uint8_t *end = text + bytes;
    *p++ = '"';
    for (;;) {
        const uint8_t *from = text;
        while (*(text = plain_end(text, end)) >= 0x80) text++; /* a NUL stands at the end */
        p = put_bytes(p, from, text - from);
        if (text >= end) break;
        uint8_t c = *text++;
        *p++ = '\\';
        if (c == '"' || c == '\\') {
            *p++ = c;
        } else {
            p = put_bytes(p, "u00", 3);
            *p++ = (uint8_t)hex[c >> 4];
            *p++ = (uint8_t)hex[c & 15];
        }
    }
    *p++ = '"';
    return p;
}

/* The most bytes that a value takes; -1 with an exception where it has no place in a line. */
static Py_ssize_t room_for(PyObject *value) {
    if (!PyUnicode_Check(value)) return NUMBER_BYTES;
    if (PyUnicode_IS_COMPACT_ASCII(value)) return 6 * PyUnicode_GET_LENGTH(value) + 2;
    Py_ssize_t bytes;
    return PyUnicode_AsUTF8AndSize(value, &bytes) == NULL ? -1 : 6 * bytes + 2;
}

static uint8_t *put_value(uint8_t *p, PyObject *value) {
    if (value == Py_None) return put_bytes(p, "null", 4);
    if (PyFloat_CheckExact(value)) return put_float(p, PyFloat_AS_DOUBLE(value));
    if (PyUnicode_Check(value)) {
        if (PyUnicode_IS_COMPACT_ASCII(value)) return put_text(p, PyUnicode_DATA(value), PyUnicode_GET_LENGTH(value));
        Py_ssize_t bytes;
        const char *text = PyUnicode_AsUTF8AndSize(value, &bytes);
        return put_text(p, (const uint8_t *)text, bytes);
    }
    if (PyFloat_Check(value)) return put_float(p, PyFloat_AS_DOUBLE(value));
    long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred()) return NULL;
    if (number < 0) *p++ = '-';
    return put_digits(p, number < 0 ? 0 - (uint64_t)number : (uint64_t)number);
}

static PyObject *json_line(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    if (num_args != 2 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[1]) ||
        PyTuple_GET_SIZE(args[0]) < PyTuple_GET_SIZE(args[1])) {
        PyErr_SetString(PyExc_TypeError, "json_line takes a tuple of keys, and one with at most as many values");
        return NULL;
    }
    Py_ssize_t num = PyTuple_GET_SIZE(args[1]), room = 4;
    for (Py_ssize_t i = 0; i < num; i++) {
        PyObject *key = PyTuple_GET_ITEM(args[0], i);
        Py_ssize_t bytes = room_for(PyTuple_GET_ITEM(args[1], i));
        if (bytes < 0) return NULL;
        if (!PyBytes_Check(key)) {
            PyErr_SetString(PyExc_TypeError, "a key is written as bytes");
            return NULL;
        }
        room += bytes + PyBytes_GET_SIZE(key) + 1;
    }
    uint8_t kept[2048], *start = room <= (Py_ssize_t)sizeof kept ? kept : PyMem_Malloc((size_t)room), *p = start;
    if (start == NULL) return PyErr_NoMemory();
    *p++ = '{';
    for (Py_ssize_t i = 0; p != NULL && i < num; i++) {
        if (i > 0) *p++ = ',';
        p = put_bytes(p, PyBytes_AS_STRING(PyTuple_GET_ITEM(args[0], i)), PyBytes_GET_SIZE(PyTuple_GET_ITEM(args[0], i)));
        p = put_value(p, PyTuple_GET_ITEM(args[1], i));
    }
    if (p != NULL) p = put_bytes(p, "}\n", 2);
    PyObject *line = p == NULL ? NULL : PyBytes_FromStringAndSize((const char *)start, p - start);
    if (start != kept) PyMem_Free(start);
    return line;
}

/* ---- named tuples ------------------------------------------------------------------------------------------------ */

/* Whether its objects are laid out as plain tuples are: the class has no dict and no slots. */
static bool is_plain_tuple(const PyTypeObject *type) {
    return type->tp_basicsize == PyTuple_Type.tp_basicsize && type->tp_itemsize == PyTuple_Type.tp_itemsize &&
           type->tp_dictoffset == 0 && type->tp_weaklistoffset == 0 && (type->tp_flags & Py_TPFLAGS_HEAPTYPE) != 0;
}

/* What tuple.__new__(type, items) makes. Where only the caller has the items, their tuple itself becomes of the type. */
static PyObject *named(PyObject *module, PyObject *const *args, Py_ssize_t num_args) {
    (void)module;
    if (num_args != 2 || !PyType_Check(args[0]) || !PyTuple_CheckExact(args[1]) ||
        !PyType_IsSubtype((PyTypeObject *)args[0], &PyTuple_Type)) {
        PyErr_SetString(PyExc_TypeError, "named takes a class of tuples, and a tuple of its items");
        return NULL;
    }
    Py_ssize_t num_items = PyTuple_GET_SIZE(args[1]);
    PyTypeObject *type = (PyTypeObject *)args[0];
    if (Py_REFCNT(args[1]) == 1 && is_plain_tuple(type)) {
        Py_INCREF(type);
        Py_SET_TYPE(args[1], type);
        return Py_NewRef(args[1]);
    }
    PyObject *made = type->tp_alloc(type, num_items);
    for (Py_ssize_t i = 0; made != NULL && i < num_items; i++) {
        PyTuple_SET_ITEM(made, i, Py_NewRef(PyTuple_GET_ITEM(args[1], i)));
    }
    return made;
}

/* ---- the module -------------------------------------------------------------------------------------------------- */

static PyMethodDef methods[] = {
    {"head_of", (PyCFunction)(void (*)(void))head_of, METH_FASTCALL, "A head without its length's digits, or None."},
    {"events_in", events_in, METH_O, "How many events a block has, and whether one has an object of usage."},
    {"json_line", (PyCFunction)(void (*)(void))json_line, METH_FASTCALL, "A line of JSON with these keys and values."},
    {"numbered", (PyCFunction)(void (*)(void))numbered, METH_FASTCALL, "Plain events, each with an id of its own, or None."},
    {"counts_at", (PyCFunction)(void (*)(void))counts_at, METH_FASTCALL, "The tokens that an answer tells, or None."},
    {"named", (PyCFunction)(void (*)(void))named, METH_FASTCALL, "A named tuple of these items."},
    {"scan", (PyCFunction)(void (*)(void))scan, METH_FASTCALL, "What a body asks for, or None."},
    {"spliced", (PyCFunction)(void (*)(void))spliced, METH_FASTCALL, "A body with other bytes in two places."},
    {"take_usage", take_usage, METH_O, "Events without the one of usage, and what that tells, or None."},
    {"whole_chunks", (PyCFunction)(void (*)(void))whole_chunks, METH_FASTCALL, "The body in whole chunks, or None."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "longboat.gateway.native._native",
    .m_size = -1,
    .m_methods = methods,
};

PyMODINIT_FUNC PyInit__native(void) {
    if (name_data_arrived == NULL) name_data_arrived = PyUnicode_InternFromString("data_arrived");
    if (name_observe == NULL) name_observe = PyUnicode_InternFromString("observe");
    if (name_data_arrived == NULL || name_observe == NULL) return NULL;
    PyObject *module = PyModule_Create(&definition);
    if (module == NULL) return NULL;
    if (PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0 || PyModule_AddType(module, &HistogramType) < 0 ||
        PyModule_AddType(module, &ChunkPathType) < 0 || PyModule_AddType(module, &TokenLogType) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
