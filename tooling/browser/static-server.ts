// Serves a few files from memory on loopback, with or without the headers that make a page
// cross-origin isolated. Only an isolated page has SharedArrayBuffer.
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { extname } from 'node:path';

const TYPES: Readonly<Record<string, string>> = {
  '.html': 'text/html; charset=utf-8',
  '.js': 'text/javascript; charset=utf-8',
  '.mjs': 'text/javascript; charset=utf-8',
  '.wasm': 'application/wasm',
};

const ISOLATION = {
  'Cross-Origin-Opener-Policy': 'same-origin',
  'Cross-Origin-Embedder-Policy': 'require-corp',
};

export type StaticServer = {
  /** Without a slash at its end. */
  readonly origin: string;
  close(): Promise<void>;
};

/**
 * @param files contents by path, such as `/page.js`; `/` is `/index.html`
 * @returns a server that listens on a free port
 */
export async function serveFiles(
  files: ReadonlyMap<string, string | Uint8Array>,
  { isIsolated }: { readonly isIsolated: boolean },
): Promise<StaticServer> {
  const server = createServer((request, response) => {
    const { pathname } = new URL(request.url ?? '/', 'http://localhost');
    const path = pathname === '/' ? '/index.html' : pathname;
    const body = files.get(path);
    if (body === undefined) {
      response.writeHead(404).end();
      return;
    }
    const type = TYPES[extname(path)] ?? 'application/octet-stream';
    response.writeHead(200, { 'Content-Type': type, ...(isIsolated ? ISOLATION : {}) });
    response.end(body);
  });
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  const { port } = server.address() as AddressInfo;
  return {
    origin: `http://127.0.0.1:${port}`,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
