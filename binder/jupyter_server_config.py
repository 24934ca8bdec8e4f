"""The policy of the demo: so short that a shutdown can be watched. For real work timeouts are hours.

Where the GPU readings come from is not said here, so that the demo also runs on a real GPU; without one, start the
server with --GpuGuard.gpu_source=simulated.
"""

c = get_config()

c.GpuGuard.mode = "enforce"
# From the last use to the shutdown: a minute, then the time that saving takes.
c.GpuGuard.idle_timeout = "60s"
c.GpuGuard.warn_before = ["40s", "20s"]
c.GpuGuard.save_timeout = "15s"
# A new kernel is left alone for this long, and a first warning comes after it.
c.GpuGuard.warm_up = "20s"
c.GpuGuard.window = "20s"
c.GpuGuard.sample_interval = "2s"
# Nothing of a demo is worth keeping.
c.GpuGuard.history_path = ":memory:"
