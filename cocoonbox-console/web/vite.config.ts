import { defineConfig } from 'vite';

export default defineConfig({
  base: '/cb/',
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
