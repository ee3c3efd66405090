/* A shared object that is no plugin. */
int skep_test_nothing(void);
int skep_test_nothing(void)
{
    return 0;
}
