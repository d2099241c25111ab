// Command init is what runs in the sandboxes of these tests: it takes memory
// and writes a file of random bytes, says "ready", and then counts aloud.
package main

import (
	"crypto/rand"
	"fmt"
	"os"
	"strconv"
	"time"
)

func main() {
	heap := make([]byte, mib(1))
	file := make([]byte, mib(2))
	_, _ = rand.Read(heap)
	_, _ = rand.Read(file)
	if err := os.WriteFile("/written", file, 0o600); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("ready")
	for i := 1; ; i++ {
		fmt.Println(i, heap[0])
		time.Sleep(2 * time.Millisecond)
	}
}

func mib(arg int) int {
	n, err := strconv.Atoi(os.Args[arg])
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	return n << 20
}
