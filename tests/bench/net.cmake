skep_bench(bench_session MODULES net)
