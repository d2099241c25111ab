package main

// arguments are the words after the program's name. They are read from the
// kernel: the package os costs more memory than the rest of the program.
func arguments() []string {
	data, errno := readFile("/proc/self/cmdline")
	if errno != 0 {
		fail("read /proc/self/cmdline: " + errno.Error())
	}
	var args []string
	for len(data) > 0 {
		var word []byte
		word, data = cut(data, 0)
		args = append(args, string(word))
	}
	if len(args) == 0 {
		return nil
	}
	return args[1:]
}
