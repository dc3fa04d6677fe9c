/* A test preloads this library into a worker process to make its clock wrong. SKEW_SECONDS is the
   offset of its date, DRIFT_PERCENT is by how many percent time passes faster in the process. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static long skew_seconds, drift_percent;
static long long begun;

static long long nanoseconds(const struct timespec *at) { return at->tv_sec * 1000000000LL + at->tv_nsec; }

__attribute__((constructor)) static void begin(void) {
    const char *skew = getenv("SKEW_SECONDS"), *drift = getenv("DRIFT_PERCENT");
    struct timespec at;
    skew_seconds = skew ? atol(skew) : 0;
    drift_percent = drift ? atol(drift) : 0;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &at);
    begun = nanoseconds(&at);
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int result = (int)syscall(SYS_clock_gettime, clock, at);
    if (result != 0)
        return result;
    if (clock == CLOCK_REALTIME)
        at->tv_sec += skew_seconds;
    /* Only the time since the start of the process drifts. Waits in the kernel use its own clock. */
    if (clock == CLOCK_MONOTONIC && begun != 0) {
        long long passed = nanoseconds(at) - begun;
        long long now = begun + passed + passed / 100 * drift_percent;
        at->tv_sec = now / 1000000000LL;
        at->tv_nsec = now % 1000000000LL;
    }
    return 0;
}
