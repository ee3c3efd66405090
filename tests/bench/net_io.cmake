skep_bench(bench_net MODULES net)
