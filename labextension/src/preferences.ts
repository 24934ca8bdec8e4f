/** The settings of the user; where there is no settings system, the defaults. */

import type { ISettingRegistry } from '@jupyterlab/settingregistry';
import { Signal } from '@lumino/signaling';
import type { IPreferences } from './tokens';

export class Preferences implements IPreferences {
  notifications = true;
  statusItem = true;

  follow(callback: () => void): void {
    this.changed.connect(callback);
    callback();
  }

  read(settings: ISettingRegistry.ISettings): void {
    const update = (): void => {
      this.notifications = settings.composite.notifications !== false;
      this.statusItem = settings.composite.statusItem !== false;
      this.changed.emit();
    };
    settings.changed.connect(update);
    update();
  }

  private readonly changed = new Signal<this, void>(this);
}
