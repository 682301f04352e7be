/*
 * A host whose clock nobody has set yet, for one process: loaded before the C library (LD_PRELOAD). The file named by
 * CLOCK_FILE says "STATUS OFFSET": the status bits of adjtimex(2), and by how many seconds the wall clock is off. It is
 * read at each call, so that the clock can be set while the process runs. Each byte in the pipe CLOCK_FILE.set is the
 * kernel's word that it was: it cancels the timer that asked for that. UPTIME_SECONDS says how long the host is up.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/timex.h>
#include <time.h>
#include <unistd.h>

static void now(long *status, long *offset)
{
    FILE *file = fopen(getenv("CLOCK_FILE"), "re");
    if (!file || fscanf(file, "%ld %ld", status, offset) != 2)
        abort();
    fclose(file);
}

static time_t younger;

__attribute__((constructor)) static void begin(void)
{
    const char *uptime = getenv("UPTIME_SECONDS");
    struct timespec real;
    if (uptime && syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &real) == 0 && real.tv_sec > atol(uptime))
        younger = real.tv_sec - atol(uptime);
}

int clock_gettime(clockid_t which, struct timespec *time)
{
    int result = (int)syscall(SYS_clock_gettime, which, time);
    if (result == 0 && which == CLOCK_REALTIME) {
        long status, offset;
        now(&status, &offset);
        time->tv_sec += offset;
    }
    if (result == 0 && which == CLOCK_MONOTONIC)
        time->tv_sec -= younger;
    return result;
}

static int cancelled = -1;

int timerfd_create(int which, int flags)
{
    char path[4096];
    if (which != CLOCK_REALTIME || !(flags & TFD_NONBLOCK))
        abort();
    snprintf(path, sizeof path, "%s.set", getenv("CLOCK_FILE"));
    return cancelled = open(path, O_RDWR | O_NONBLOCK | O_CLOEXEC);
}

int timerfd_settime(int timer, int flags, const struct itimerspec *new, struct itimerspec *old)
{
    if (timer != cancelled || flags != (TFD_TIMER_ABSTIME | TFD_TIMER_CANCEL_ON_SET) || !new->it_value.tv_sec || old)
        abort();
    return 0;
}

ssize_t read(int file, void *into, size_t length)
{
    ssize_t result = syscall(SYS_read, file, into, length);
    if (file == cancelled && result > 0) {
        errno = ECANCELED;
        return -1;
    }
    return result;
}

int adjtimex(struct timex *asked)
{
    long status, offset;
    if (asked->modes)
        abort();
    now(&status, &offset);
    memset(asked, 0, sizeof *asked);
    asked->status = (int)status;
    return status & STA_UNSYNC ? TIME_ERROR : TIME_OK;
}
