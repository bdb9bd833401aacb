// Builds the test page for devices and training from the built packages.
import { fileURLToPath } from 'node:url';
import { bundlePage } from './bundle-page.ts';

/** @returns the page's files by their path on the server */
export function buildPage(): Promise<ReadonlyMap<string, string | Uint8Array>> {
  return bundlePage({
    page: fileURLToPath(new URL('page/page.ts', import.meta.url)),
    'cpu-worker': fileURLToPath(import.meta.resolve('@shardweave/tensor-core/cpu-worker')),
  });
}
