/* Preloaded into a worker process by a test: its clock is wrong. SKEW_SECONDS is how far its date is off, DRIFT_PERCENT how much
   faster time passes for it. */
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
    int answer = (int)syscall(SYS_clock_gettime, clock, at);
    if (answer != 0)
        return answer;
    if (clock == CLOCK_REALTIME)
        at->tv_sec += skew_seconds;
    /* What passed before this process began is left as it was: waits of the kernel go by its own clock. */
    if (clock == CLOCK_MONOTONIC && begun != 0) {
        long long passed = nanoseconds(at) - begun;
        long long now = begun + passed + passed / 100 * drift_percent;
        at->tv_sec = now / 1000000000LL;
        at->tv_nsec = now % 1000000000LL;
    }
    return 0;
}
