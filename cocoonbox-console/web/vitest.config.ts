import { defineConfig } from 'vitest/config';

export default defineConfig({
  test: {
    environment: 'node',
    include: ['**/*.test.ts'],
    // the tests of the pages share one browser
    fileParallelism: false,
    testTimeout: 60_000,
    hookTimeout: 60_000,
  },
});
