skep_bench(bench_crypto MODULES crypto)
