module github.com/hibernate-runtime/hibernate/tools/critest

go 1.26.8

require sigs.k8s.io/cri-tools v1.37.0
