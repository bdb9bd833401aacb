// What the forming of a job needs of the platform that it runs on.

import type { SocketPlatform } from '../../../sockets/socket-platform.js';
import type { HeartbeatSender } from '../heartbeat/heartbeat-sender.js';

export interface WsPlatform {
  readonly sockets: SocketPlatform;
  /**
   * Starts signs of life that don't depend on the rank's own thread; resolves with undefined where
   * the platform has none.
   */
  startHeartbeats(heartbeatMs: number): Promise<HeartbeatSender | undefined>;
}
