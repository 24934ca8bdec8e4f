import { readFileSync } from 'node:fs';
import { defineConfig } from 'vitest/config';

// Times are shown in the zone of the page; the tests need one that is the same everywhere.
process.env.TZ = 'Europe/Berlin';

export default defineConfig({
  plugins: [
    {
      name: 'svg-as-text',
      enforce: 'pre',
      load(id: string) {
        return id.endsWith('.svg')
          ? `export default ${JSON.stringify(readFileSync(id, 'utf8'))}`
          : null;
      }
    }
  ],
  test: {
    environment: 'jsdom',
    include: ['test/**/*.test.ts'],
    setupFiles: ['test/setup.ts'],
    server: { deps: { inline: [/@jupyterlab\//, /@lumino\//, /@jupyter\//] } },
    testTimeout: 20000
  }
});
