// What openNodeGpu asks of Dawn, and which adapters there are to ask for. The adapters are real;
// where Chromium's SwiftShader is installed, there are two.

import { existsSync } from 'node:fs';
import { createWebGpuBackend } from '@shardweave/tensor-core/webgpu';
import { listNodeAdapters, openNodeGpu } from '@shardweave/tensor-core/webgpu-node';
import { afterAll, beforeAll, describe, expect, it, test, vi } from 'vitest';
import { reason } from './support/webgpu-kit.js';

const SWIFTSHADER = '/usr/lib/chromium/vk_swiftshader_icd.json';
/** An extension that Dawn offers behind allow_unsafe_apis alone. */
const UNSAFE = 'chromium-experimental-subgroup-matrix';

async function hasUnsafe(...flags: string[]): Promise<boolean> {
  const adapter = await openNodeGpu({ flags: ['backend=null', ...flags] }).requestAdapter();
  return adapter!.features.has(UNSAFE);
}

describe('flags of Dawn', () => {
  test('come on top of ours', async () => {
    expect(await hasUnsafe()).toBe(true);
  });

  test('may name toggles of their own beside ours', async () => {
    expect(await hasUnsafe('enable-dawn-features=dump_shaders,disable_robustness')).toBe(true);
    expect(await hasUnsafe('disable-dawn-features=lazy_clear_resource_on_first_use')).toBe(true);
  });

  test('count before ours where they say the opposite', async () => {
    expect(await hasUnsafe('disable-dawn-features=allow_unsafe_apis,dump_shaders')).toBe(false);
  });
});

const skipped = reason ?? (existsSync(SWIFTSHADER) ? undefined : 'no SwiftShader of Chromium');

describe.skipIf(skipped !== undefined)(`adapters${skipped ? ` (${skipped})` : ''}`, () => {
  beforeAll(() => {
    // The Vulkan loader looks for drivers when an adapter is first requested.
    vi.stubEnv('VK_ADD_DRIVER_FILES', SWIFTSHADER);
  });
  afterAll(() => {
    vi.unstubAllEnvs();
  });

  it('are listed, all of them, and each is opened by its name', async () => {
    const adapters = await listNodeAdapters();
    expect(adapters.length).toBeGreaterThan(1);
    expect(adapters.filter(({ device }) => device.includes('SwiftShader'))).toHaveLength(1);
    for (const { device, name, isReachable } of adapters) {
      expect(isReachable).toBe(true);
      const backend = await createWebGpuBackend({ gpu: openNodeGpu({ adapter: device }) });
      const [driver] = name.match(/[^,]*$/)!; // Dawn shows pages a plain form of the device's name.
      expect(driver).toMatch(/\w/);
      expect(backend.info.description).toContain(driver);
      await backend.dispose();
    }
    expect(new Set(adapters.map(({ name }) => name)).size).toBe(adapters.length);
  });

  it('adapters of one name are listed, and Dawn opens the first alone', async () => {
    vi.stubEnv('VK_ADD_DRIVER_FILES', `${SWIFTSHADER}:/etc/../${SWIFTSHADER}`);
    const twins = (await listNodeAdapters()).filter(({ device }) => device.includes('SwiftShader'));
    expect(twins.map(({ isReachable }) => isReachable)).toEqual([true, false]);
    expect(twins[1]!.name).toBe(twins[0]!.name);
  });

  it('adapters that no machine has are refused with the names of those that there are', async () => {
    await expect(openNodeGpu({ adapter: 'Voodoo 2' }).requestAdapter()).rejects.toThrow(
      /Available adapters:\n.*SwiftShader/s,
    );
  });
});
