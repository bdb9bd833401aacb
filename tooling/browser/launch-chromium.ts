// Headless Chromium for the page tests, with WebGPU on Chromium's own software driver. It connects
// only to loopback, since its background services are off.
import { type Browser, chromium, type Page } from 'playwright-core';

/**
 * The first two render the suggestions of an address bar, which nobody sees, in a process for each
 * page: half of all that a small page takes. Chromium goes by the last list alone, so those of
 * Playwright's that would reach the network, or change what a page's address leads to, stand here
 * again.
 */
const DISABLED_FEATURES = [
  'WebUIOmniboxPopup',
  'WebUIOmniboxAimPopup',
  'AimEnabled',
  'HttpsFirstBalancedModeAutoEnable',
  'HttpsUpgrades',
  'LensOverlay',
  'MediaRouter',
  'NetworkTimeServiceQuerying',
  'OptimizationHints',
  'PreconnectToSearch',
];

const FLAGS = [
  `--disable-features=${DISABLED_FEATURES}`,
  // Software WebGPU is behind these two flags. --disable-gpu would remove WebGPU altogether.
  '--enable-unsafe-webgpu',
  '--use-webgpu-adapter=swiftshader',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
  '--disable-quic',
  '--no-first-run',
];

/**
 * The limit for what never comes. A loaded machine may need the default, half a minute, for a page
 * that does come.
 */
const LIMIT_MS = 240_000;

/**
 * The path of the browser, or the reason why there is none. Set-up determines both
 * (`tooling/setup/chromium.mjs`).
 */
export async function chromiumPath(): Promise<{ path?: string; reason: string }> {
  const { findChromium } = await import('../setup/chromium.mjs');
  const path = findChromium();
  if (path !== undefined) {
    return { path, reason: '' };
  }
  return { reason: process.env.SHARDWEAVE_NO_CHROMIUM ?? 'no Chromium or Chrome was found' };
}

export async function launchChromium(executablePath: string): Promise<Browser> {
  // Chromium's sandbox does not work for root. Other users keep theirs.
  const isRoot = process.getuid?.() === 0;
  const timeout = LIMIT_MS;
  return chromium.launch({ executablePath, args: FLAGS, chromiumSandbox: !isRoot, timeout });
}

/** Opens a page with the same limit as the browser. */
export async function newPage(browser: Browser): Promise<Page> {
  const page = await browser.newPage();
  page.setDefaultTimeout(LIMIT_MS);
  return page;
}
