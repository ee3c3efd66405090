# The program's measurements run and tell what they were asked for; how fast is no matter here.
skep_integration_test(test_bench_throughput 600 ALONE)
