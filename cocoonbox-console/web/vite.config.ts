import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { constants, gzipSync } from 'node:zlib';

import { defineConfig, type Plugin } from 'vite';

/** Leaves a compressed copy beside each file that is a tenth smaller for it: the server has nothing to compress. */
function compressed(): Plugin {
  return {
    name: 'compressed',
    apply: 'build',
    writeBundle({ dir = 'dist' }) {
      const folder = join(dir, 'assets');
      for (const name of readdirSync(folder)) {
        const bytes = readFileSync(join(folder, name));
        const smaller = gzipSync(bytes, { level: constants.Z_BEST_COMPRESSION });
        if (bytes.length > 1024 && smaller.length < bytes.length * 0.9)
          writeFileSync(join(folder, `${name}.gz`), smaller);
      }
    },
  };
}

export default defineConfig({
  base: '/cb/',
  plugins: [compressed()],
  build: {
    outDir: 'dist',
    target: 'es2022',
    // the policy of the pages allows files of their own origin: nothing is inlined, no loader is injected
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    reportCompressedSize: true,
  },
  // `npm run dev` beside a server that was started as usual
  server: { proxy: { '/cb/api': 'http://127.0.0.1:7420' } },
});
