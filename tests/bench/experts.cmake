skep_bench(bench_experts MODULES experts)
