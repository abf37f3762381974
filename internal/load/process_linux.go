package load

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// endWithUs has the process killed when we die.
func endWithUs(cmd *exec.Cmd) {
	// SIGINT at a terminal goes to everyone; we end our children ourselves.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
}

// measure reads what a process has used so far, from /proc.
func measure(pid int) (usage, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return usage{}, fmt.Errorf("load: process %d: %w", pid, err)
	}
	_, after, _ := bytes.Cut(stat, []byte(") ")) // the name before may hold anything
	fields := strings.Fields(string(after))
	if len(fields) < 13 {
		return usage{}, fmt.Errorf("load: process %d: /proc has another form than expected", pid)
	}
	user, _ := strconv.ParseUint(fields[11], 10, 64)
	system, _ := strconv.ParseUint(fields[12], 10, 64)
	u := usage{cpu: time.Duration(user+system) * (time.Second / 100)} // USER_HZ is 100 wherever Go runs
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return usage{}, fmt.Errorf("load: process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		kb, _, _ := strings.Cut(strings.TrimSpace(value), " ")
		n, _ := strconv.ParseUint(kb, 10, 64)
		switch name {
		case "VmRSS":
			u.rss = n << 10
		case "VmHWM":
			u.peak = n << 10
		}
	}
	return u, nil
}

// forgetPeak has the kernel count the peak from now on, where it lets us.
func forgetPeak(pid int) {
	_ = os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", pid), []byte("5"), 0) // else it counts from the start
}

// ownCPU is what this process has used, and its children that have ended.
func ownCPU() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// children lists the processes that pid has started, for servers that fork.
func children(pid int) (list []int) {
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, path := range tasks {
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		for f := range strings.FieldsSeq(string(b)) {
			if n, err := strconv.Atoi(f); err == nil {
				list = append(list, n)
				list = append(list, children(n)...)
			}
		}
	}
	return list
}

// raiseFiles raises the soft limit of open files to the hard one.
func raiseFiles() (limit uint64) {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil {
		return 1024
	}
	if r.Cur < r.Max {
		up := unix.Rlimit{Cur: r.Max, Max: r.Max}
		if unix.Setrlimit(unix.RLIMIT_NOFILE, &up) == nil {
			r.Cur = r.Max
		}
	}
	return r.Cur
}

// describeMachine says where we are.
func describeMachine() Machine {
	m := Machine{System: runtime.GOOS + "/" + runtime.GOARCH, Cores: runtime.NumCPU(), Files: raiseFiles()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	var s unix.Sysinfo_t
	if unix.Sysinfo(&s) == nil {
		m.Memory = uint64(s.Totalram) * uint64(s.Unit)
	}
	return m
}

// sendMemory is what the kernel keeps of what the server at port has sent and
// its clients have not taken, in bytes of buffers where ss can tell, else of
// payload.
func sendMemory(port uint16) (bytes uint64, how string) {
	out, err := exec.Command("ss", "-tmnH", "state", "established", fmt.Sprintf("sport = :%d", port)).Output()
	if err == nil {
		for line := range strings.Lines(string(out)) {
			_, mem, ok := strings.Cut(line, "skmem:(")
			if !ok {
				continue
			}
			mem, _, _ = strings.Cut(mem, ")")
			for f := range strings.SplitSeq(mem, ",") {
				if rest, ok := strings.CutPrefix(f, "w"); ok {
					n, _ := strconv.ParseUint(rest, 10, 64)
					bytes += n
				}
			}
		}
		return bytes, "ss"
	}
	b, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return 0, ""
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		if len(f) < 5 {
			continue
		}
		_, local, _ := strings.Cut(f[1], ":")
		queued, _, _ := strings.Cut(f[4], ":")
		if p, err := strconv.ParseUint(local, 16, 16); err == nil && uint16(p) == port {
			n, _ := strconv.ParseUint(queued, 16, 64)
			bytes += n
		}
	}
	return bytes, "/proc/net/tcp"
}
