// actor plays the processes that a scan of /proc has trouble with. Each role prints one line when it is
// in place and ends when its standard input does, so that nothing outlives a test that dies.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

// ended tells within ms milliseconds whether standard input has ended; -1 waits for it.
static int ended(int ms)
{
	struct pollfd p = { .fd = 0, .events = POLLIN };
	char c;
	if (poll(&p, 1, ms) == 1 && read(0, &c, 1) == 0)
		return 1;
	return 0;
}

static void hold(void)
{
	while (!ended(-1))
		;
	_exit(0);
}

static void ready(const char *what, long n)
{
	char line[64];
	int len = snprintf(line, sizeof line, "%s %ld\n", what, n);
	if (write(1, line, len) != len)
		_exit(3);
}

static void *hold_thread(void *arg)
{
	ready("ready", getpid());
	hold();
	return arg;
}

static void *exec_thread(void *arg)
{
	execv("/proc/self/exe", arg);
	_exit(4);
}

// erase overwrites the environment where the kernel reads it (case T19).
static void erase(void)
{
	char *first = environ[0], *last = first;
	for (char **e = environ; *e; e++)
		last = *e + strlen(*e) + 1;
	if (first)
		memset(first, 0, last - first);
}

// unmap takes the pages of the environment away, but for the first, which it shares with the stack.
static void unmap(void)
{
	static char *none[] = { NULL };
	long page = sysconf(_SC_PAGESIZE);
	char *first = environ[0], *last = first;
	for (char **e = environ; *e; e++)
		last = *e + strlen(*e) + 1;
	char *from = (char *)(((unsigned long)first + page) & ~(page - 1));
	environ = none;
	if (from >= last || munmap(from, last - from) != 0)
		_exit(5);
}

// hopper is a chain: each link forks the next one and exits (case T21). It bounds itself, by number of
// processes where it is not root's and by number of links everywhere.
static void hopper(long usec)
{
	struct rlimit most = { 512, 512 };
	if (setrlimit(RLIMIT_NPROC, &most) != 0)
		_exit(6);
	ready("ready", getpid());
	for (long n = 0; n < 2000000; n++) {
		pid_t pid = fork();
		if (pid > 0)
			_exit(0);
		if (pid < 0 && errno != EAGAIN)
			_exit(6);
		if (ended(0))
			_exit(0);
		if (usec > 0)
			usleep(usec);
	}
	_exit(0);
}

// many forks n sleepers and ends them all, by pid. In a pid namespace of its own it shows them at proc.
static void many(long n, const char *proc)
{
	if (*proc && mount("proc", proc, "proc", 0, NULL) != 0) {
		perror(proc);
		_exit(8);
	}
	pid_t *pids = calloc(n, sizeof *pids);
	for (long i = 0; i < n; i++) {
		pids[i] = fork();
		if (pids[i] == 0)
			for (;;)
				pause();
		if (pids[i] < 0) {
			perror("fork");
			n = i;
		}
	}
	ready("ready", n);
	while (!ended(-1))
		;
	for (long i = 0; i < n; i++)
		kill(pids[i], SIGKILL);
	for (long i = 0; i < n; i++)
		waitpid(pids[i], NULL, 0);
	_exit(0);
}

// leave_zombie has a child that exits, in the cgroup dir if there is one, and is not waited for (case T25).
static void leave_zombie(const char *dir)
{
	pid_t pid = fork();
	if (pid == 0) {
		if (*dir) {
			char path[4096];
			snprintf(path, sizeof path, "%s/cgroup.procs", dir);
			int fd = open(path, O_WRONLY);
			if (fd < 0 || write(fd, "0", 1) != 1)
				_exit(8);
		}
		_exit(0);
	}
	siginfo_t info;
	if (waitid(P_PID, pid, &info, WEXITED | WNOWAIT) != 0 || info.si_status != 0)
		_exit(8);
	ready("ready", pid);
	hold();
}

// sleep_in_kernel waits for its vfork child, which no signal but a deadly one interrupts: state D.
static void sleep_in_kernel(void)
{
	ready("ready", getpid());
	if (vfork() == 0)
		hold();
	_exit(0);
}

static void lock(const char *path, int use_flock)
{
	struct flock l = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || (use_flock ? flock(fd, LOCK_EX | LOCK_NB) : fcntl(fd, F_OFD_SETLK, &l)) != 0) {
		perror(path);
		_exit(7);
	}
}

// family has one child that inherits the environment and one that does not (case T22).
static void family(char *self)
{
	static char *bare[] = { NULL };
	char *argv[] = { self, "hold", NULL };
	for (int i = 0; i < 2; i++)
		if (fork() == 0) {
			execve("/proc/self/exe", argv, i ? bare : environ);
			_exit(4);
		}
	while (!ended(-1))
		;
	while (wait(NULL) > 0)
		;
	_exit(0);
}

int main(int argc, char **argv)
{
	const char *role = argc > 1 ? argv[1] : "";
	const char *arg = argc > 2 ? argv[2] : "";
	pthread_t thread;

	if (strcmp(role, "hold") == 0) {
		ready("ready", getpid());
		hold();
	} else if (strcmp(role, "erase") == 0) {
		erase();
		ready("ready", getpid());
		hold();
	} else if (strcmp(role, "unmap") == 0) {
		unmap();
		ready("ready", getpid());
		hold();
	} else if (strcmp(role, "undumpable") == 0) {
		prctl(PR_SET_DUMPABLE, 0);
		ready("ready", getpid());
		hold();
	} else if (strcmp(role, "reexec") == 0 || strcmp(role, "reexec-thread") == 0) {
		if (ended(0))
			_exit(0);
		if (argc == 2) // the first of them
			ready("ready", getpid());
		char *next[] = { argv[0], argv[1], "again", NULL };
		if (strcmp(role, "reexec") == 0) {
			execv("/proc/self/exe", next);
			_exit(4);
		}
		pthread_create(&thread, NULL, exec_thread, next);
		pthread_join(thread, NULL);
	} else if (strcmp(role, "headless") == 0) {
		pthread_create(&thread, NULL, hold_thread, NULL);
		pthread_exit(NULL);
	} else if (strcmp(role, "headless-lock") == 0) {
		lock(arg, 0);
		pthread_create(&thread, NULL, hold_thread, NULL);
		pthread_exit(NULL);
	} else if (strcmp(role, "zombie") == 0) {
		leave_zombie(arg);
	} else if (strcmp(role, "vfork") == 0) {
		sleep_in_kernel();
	} else if (strcmp(role, "ofd") == 0 || strcmp(role, "flock") == 0) {
		lock(arg, strcmp(role, "flock") == 0);
		ready("ready", getpid());
		hold();
	} else if (strcmp(role, "hopper") == 0) {
		hopper(atol(arg));
	} else if (strcmp(role, "many") == 0) {
		many(atol(arg), argc > 3 ? argv[3] : "");
	} else if (strcmp(role, "family") == 0) {
		family(argv[0]);
	}
	fprintf(stderr, "actor: no such role: %s\n", role);
	return 2;
}
