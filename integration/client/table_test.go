package client

// asked are containerd's tests that a runtime can be asked.
var asked = []string{
	"TestCheckpointLeaveRunning", "TestCheckpointOnPauseStatus",
	"TestContainerAttach", "TestContainerAttachProcess", "TestContainerCloseIO", "TestContainerExec",
	"TestContainerExecLargeOutputWithTTY", "TestContainerExecNoBinaryExists", "TestContainerExitedAtSet",
	"TestContainerHook", "TestContainerHostname", "TestContainerKill", "TestContainerKillAll",
	"TestContainerLargeExecArgs",
	"TestContainerLoadUnexistingProcess", "TestContainerMetrics", "TestContainerNoSTDIN", "TestContainerOutput",
	"TestContainerPTY", "TestContainerPids", "TestContainerRestartPolicyAlways", "TestContainerStart",
	"TestContainerStartWithAbsRuntimePath", "TestContainerUser", "TestContainerUserID", "TestContainerUsername",
	"TestContainerWait",
	"TestDaemonCustomCgroup", "TestDaemonReconnectsToShimIOPipesOnRestart", "TestDaemonRestart",
	"TestDeleteContainerExecCreated", "TestDeleteRunningContainer", "TestDeletedContainerMetrics",
	"TestBindLowPortNonOpt", "TestIssue13030", "TestProcessForceDelete", "TestRegressionIssue4769", "TestRestartMonitor",
	"TestShimDoesNotLeakPipes", "TestShimDoesNotLeakSockets", "TestShimOOMScore", "TestShimSockLength",
	"TestShortRunningTaskPid", "TestTaskForceDelete", "TestTaskResize", "TestTaskSpec", "TestTaskUpdate", "TestUIDNoGID",
	"TestWaitStoppedProcess", "TestWaitStoppedTask",
}

// noMatter are those in which no runtime takes part: they are of images, content, leases, snapshots, mounts, of containers
// without a task, and of the client itself.
var noMatter = []string{
	"BenchmarkContainerCreate", "BenchmarkContainerStart", // no tests
	"TestClientReconnect", "TestClientTTRPC_Close", "TestClientTTRPC_New", "TestClientTTRPC_Reconnect", "TestContainerExtensions",
	"TestContainerImage", "TestContainerInfo", "TestContainerLabels", "TestContainerList", "TestContainerNoImage",
	"TestContainerUpdate", "TestContentClient", "TestConvert", "TestDefaultRuntimeWithNamespaceLabels", "TestExportAllCases",
	"TestExportAndImport", "TestExportAndImportMultiLayer", "TestIDMappedOverlay", "TestImageIsUnpacked", "TestImagePull",
	"TestImagePullAllPlatforms", "TestImagePullSomePlatforms", "TestImagePullWithConcurrencyLimit",
	"TestImagePullWithConcurrentUnpacks", "TestImagePullWithDiscardContent", "TestImagePullWithDistSourceLabel",
	"TestImagePullWithTracing", "TestImageSupportedBySnapshotter_Error", "TestImageUsage", "TestImport", "TestLeaseResources",
	"TestMigration", "TestMountManager", "TestNewClient", "TestNewContainer", "TestNewTaskWithRuntimeOption",
	"TestPullFetchAllContent", "TestSnapshotterClient", "TestTransferEcho", "TestTransferImport",
}

// Reasons for which a test is not asked.
const (
	gvisor  = "gVisor can't: "
	ofRunc  = "it asks for runc: "
	missing = "not here: "
	ours    = "otherwise by design: "
)

// skipped are all others, each with its reason.
var skipped = map[string]string{
	"TestBindLowPortNonRoot": gvisor + "its network stack lets every user bind low ports, so that what should fail listens for ever",
	"TestCheckpointRestore": ours + "monotonic time goes on while a container is a checkpoint: a sleep of ten seconds that is restored after " +
		"ten is over before it can be killed",
	"TestCheckpointRestoreNewContainer": ours + "as TestCheckpointRestore, where it is a race",
	"TestCheckpointRestorePTY":          gvisor + "a process whose controlling terminal is of the host isn't restored; the checkpoint is refused with that reason",
	"TestCheckpointRestoreWithImagePath": gvisor + "it restores only with the specification that the checkpoint was made with; " +
		"integration/checkpointverbs has image paths",
	"TestContainerKillInitKillsChildWhenNotHostPid": gvisor + "its processes are none of the host, where the test looks for them, and finds everybody's",
	"TestContainerKillInitPidHost":                  gvisor + "as TestContainerKillInitKillsChildWhenNotHostPid",
	"TestContainerNoBinaryExists":                   gvisor + "it looks for the program when it starts it; the error comes at Start, not at Create",
	"TestRegressionIssue6429":                       gvisor + "as TestContainerNoBinaryExists; that no event of an exit follows is in integration/verbs",
	"TestRuntimeInfo":                               gvisor + "it wants recursive read-only mounts (rro), which runsc's features don't have",
	"TestDaemonRestartWithRunningShim": ours + "the task's pid is of a process that stands for it, asleep or awake, and stays until Delete: " +
		"it must be gone with the exit here",
	"TestUserNamespaces": missing + "an image with bash and a setuid passwd at a name of its own; user namespaces are not supported by this runtime yet",

	"TestContainerRuntimeOptionsv2":  ofRunc + "its options, and their effect",
	"TestDaemonRuntimeRoot":          ofRunc + "the option Root",
	"TestIssue10589":                 ofRunc + "a runc that fails when told",
	"TestIssue9103":                  ofRunc + "a runc that fails when told",
	"TestKillContainerDeletedByRunc": ofRunc + "it deletes the container behind the shim's back, with runc",
	"TestShimInCgroup":               ofRunc + "the option ShimCgroup",

	"TestMountAtRuntime": missing + "mkfs.xfs, and a snapshotter whose view is one mount",

	"FuzzIntegCreateContainerNoTearDown":   missing + "fuzzing of the daemon, which fetches a containerd",
	"FuzzIntegCreateContainerWithTearDown": missing + "fuzzing of the daemon, which fetches a containerd",
	"FuzzIntegNoTearDownWithDownload":      missing + "fuzzing of the daemon, which fetches a containerd",
}
