/* Counts ten times a second and writes its process id, the count and the wall clock in milliseconds: time that the
 * program did not see shows as a gap between two counts. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

int main(int count, char **words)
{
    if (count < 2) {
        fprintf(stderr, "usage: ticks FILE [COUNTS]\n");
        return 2;
    }
    FILE *file = fopen(words[1], "w");
    if (!file) {
        perror(words[1]);
        return 1;
    }
    long counts = count > 2 ? atol(words[2]) : 0;
    for (long n = 1; counts == 0 || n <= counts; n++) {
        struct timespec now;
        struct timespec pause = {0, 100 * 1000 * 1000};
        clock_gettime(CLOCK_REALTIME, &now);
        fprintf(file, "%ld %ld %lld\n", (long)getpid(), n, now.tv_sec * 1000LL + now.tv_nsec / 1000000);
        if (fflush(file))
            return 1;
        nanosleep(&pause, NULL);
    }
    return fclose(file) ? 1 : 0;
}
