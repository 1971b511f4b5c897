// environs opens and reads the environment of every process below the proc file system that its argument
// names, as plainly as C can, and prints how many
// nanoseconds that took, by the clock and of processor time, and how many environments it read. One pass
// for each line of its input.
#define _GNU_SOURCE
#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static char buf[2 << 20];

static long now(clockid_t clock)
{
	struct timespec t;
	clock_gettime(clock, &t);
	return t.tv_sec * 1000000000L + t.tv_nsec;
}

static long pass(const char *root)
{
	long count = 0;
	DIR *proc = opendir(root);
	int dir = dirfd(proc);
	struct dirent *e;
	while ((e = readdir(proc))) {
		char path[64];
		if (!isdigit((unsigned char)e->d_name[0]))
			continue;
		char *end = stpcpy(path, e->d_name);
		strcpy(end, "/environ");
		int fd = openat(dir, path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			continue;
		ssize_t n = read(fd, buf, sizeof buf);
		if (n > 0)
			count++;
		close(fd);
	}
	closedir(proc);
	return count;
}

int main(int argc, char **argv)
{
	char line[16];
	if (argc != 2)
		return 2;
	while (fgets(line, sizeof line, stdin)) {
		long wall = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID), count = pass(argv[1]);
		printf("%ld %ld %ld\n", now(CLOCK_MONOTONIC) - wall, now(CLOCK_PROCESS_CPUTIME_ID) - cpu, count);
		fflush(stdout);
	}
	return 0;
}
