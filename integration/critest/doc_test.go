// Package critest runs critest, the suite by which CRI's authors judge a runtime, against containerd's CRI with this
// runtime: `make test-cri`. First as it is; then with every pod put to sleep after each of its calls, so that all that a
// caller does meets a sleeper. table_test.go says what is left out, and why.
package critest
