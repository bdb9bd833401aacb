// Bundles the page and serves it: `node serve.mjs [port]`. Web workers share memory only where the
// page comes with these two headers.
import { readFile } from 'node:fs/promises';
import { createServer } from 'node:http';
import { fileURLToPath } from 'node:url';
import { build } from 'esbuild';

const folder = fileURLToPath(new URL('.', import.meta.url));
const html = await readFile(`${folder}index.html`);
const options = { bundle: true, format: 'esm', write: false, outdir: folder, logLevel: 'error' };
const entryPoints = [`${folder}page.js`, `${folder}rank.js`];
const { outputFiles } = await build({ ...options, entryPoints });
const [page, rank] = outputFiles.map(({ contents }) => contents);

const files = {
  '/': ['text/html', html],
  '/page.js': ['text/javascript', page],
  '/rank.js': ['text/javascript', rank],
};
const server = createServer(({ url }, response) => {
  const [type, body] = files[url] ?? [];
  response.writeHead(body === undefined ? 404 : 200, {
    'Content-Type': type ?? 'text/plain',
    'Cross-Origin-Opener-Policy': 'same-origin',
    'Cross-Origin-Embedder-Policy': 'require-corp',
  });
  response.end(body);
});
const port = Number(process.argv[2] ?? 8080);
server.listen(port, 'localhost', () => {
  console.log(`http://localhost:${server.address().port}`);
});
