// Bundles the test page from the built packages, the way a user's bundler would: no alias, nothing
// external, the worker of the cpu device as a file of its own beside the page.
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const HTML = `<!doctype html>
<meta charset="utf-8">
<title>shardweave page tests</title>
<link rel="icon" href="data:,">
<script type="module" src="/page.js"></script>
`;

/** @returns the page's files by their path on the server */
export async function buildPage(): Promise<ReadonlyMap<string, string | Uint8Array>> {
  const result = await build({
    entryPoints: {
      page: fileURLToPath(new URL('page/page.ts', import.meta.url)),
      'cpu-worker': fileURLToPath(import.meta.resolve('@shardweave/tensor-core/cpu-worker')),
    },
    outdir: '/',
    bundle: true,
    format: 'esm',
    platform: 'browser',
    target: 'es2022',
    write: false,
    logLevel: 'silent',
  });
  const files = new Map<string, string | Uint8Array>([['/index.html', HTML]]);
  for (const { path, contents } of result.outputFiles) {
    files.set(`/${path.split(/[/\\]/).at(-1)}`, contents);
  }
  return files;
}
