// Headless Chromium for the page tests, with WebGPU on its own software driver. It opens no
// connection but to loopback: its background services are off.
import { type Browser, chromium, type Page } from 'playwright-core';

const FLAGS = [
  // Software WebGPU is behind these two; --disable-gpu would take WebGPU away altogether.
  '--enable-unsafe-webgpu',
  '--use-webgpu-adapter=swiftshader',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--disable-quic',
  '--no-first-run',
];

/**
 * For what never comes: half a minute, the default, is what a loaded machine may take for a page.
 */
const LIMIT_MS = 240_000;

/** The browser's path, or why there is none; set by set-up (`tooling/setup/chromium.mjs`). */
export async function chromiumPath(): Promise<{ path?: string; reason: string }> {
  const { findChromium } = await import('../setup/chromium.mjs');
  const path = findChromium();
  if (path !== undefined) {
    return { path, reason: '' };
  }
  return { reason: process.env.SHARDWEAVE_NO_CHROMIUM ?? 'no Chromium or Chrome was found' };
}

export async function launchChromium(executablePath: string): Promise<Browser> {
  // Root has no sandbox to enter; anybody else keeps theirs.
  const isRoot = process.getuid?.() === 0;
  const timeout = LIMIT_MS;
  return chromium.launch({ executablePath, args: FLAGS, chromiumSandbox: !isRoot, timeout });
}

/** A page that is waited for as long as the browser. */
export async function newPage(browser: Browser): Promise<Page> {
  const page = await browser.newPage();
  page.setDefaultTimeout(LIMIT_MS);
  return page;
}
