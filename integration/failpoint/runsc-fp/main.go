// Command runsc-fp is runsc with faults; see package failpoint.
package main

import (
	"os"

	"github.com/hibernate-runtime/hibernate/integration/failpoint"
)

func main() { os.Exit(failpoint.Main()) }
