package faults

import (
	"os"
	"strconv"
	"sync"
	"time"
)

// seed of the random sequences: FAULTS_SEED, else another one each time.
var seed = sync.OnceValue(func() int64 {
	if n, err := strconv.ParseInt(os.Getenv("FAULTS_SEED"), 10, 64); err == nil {
		return n
	}
	return time.Now().UnixNano() % 1_000_000
})
