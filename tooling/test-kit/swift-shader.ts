// SwiftShader, the software driver that Chromium brings, beside the adapter that a test has anyway.
// It compiles attention's tiles for hardware in a second, where Mesa's takes a minute.

import { existsSync } from 'node:fs';
import { openNodeGpu } from '@shardweave/tensor-core/webgpu-node';

const DRIVER = '/usr/lib/chromium/vk_swiftshader_icd.json';

/** Why there is no SwiftShader; undefined where there is. */
export const noSwiftShader = existsSync(DRIVER) ? undefined : 'no SwiftShader of Chromium';

/** Opens it. Call it after the machine's own adapter was found. */
export async function openSwiftShader(): Promise<GPU> {
  // The Vulkan loader looks for drivers when an adapter is first requested.
  process.env.VK_ADD_DRIVER_FILES = DRIVER;
  try {
    const opened = openNodeGpu({ flags: ['adapter=SwiftShader'] });
    await opened.requestAdapter();
    return opened;
  } finally {
    delete process.env.VK_ADD_DRIVER_FILES;
  }
}
