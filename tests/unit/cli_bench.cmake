skep_unit_test(test_bench_stats MODULES cli)
