"""Settings of the flow, from `dit_config.cfm_config`.

Source: voxcpm/modules/locdit/unified_cfm.py `CfmConfig`.
"""

from __future__ import annotations

from dataclasses import dataclass

from voxnative.config_section import Section


@dataclass(frozen=True)
class CFMConfig:
    """Flow-matching settings; inference takes cfg and timesteps from the request instead."""

    sigma_min: float = 1e-6
    solver: str = "euler"
    t_scheduler: str = "log-norm"
    training_cfg_rate: float = 0.1
    inference_cfg_rate: float = 1.0
    reg_loss_type: str = "l1"
    ratio_r_neq_t_range: tuple[float, ...] = (0.25, 0.75)
    noise_cond_prob_range: tuple[float, ...] = (0.0, 0.0)
    noise_cond_scale: float = 0.0


def read_cfm(s: Section) -> CFMConfig:
    """The section's settings; a key that is absent has the reference's default."""
    d = CFMConfig()
    config = CFMConfig(
        sigma_min=s.number("sigma_min", d.sigma_min),
        solver=s.choice("solver", ("euler",), d.solver),
        t_scheduler=s.choice("t_scheduler", ("log-norm", "uniform"), d.t_scheduler),
        training_cfg_rate=s.number("training_cfg_rate", d.training_cfg_rate),
        inference_cfg_rate=s.number("inference_cfg_rate", d.inference_cfg_rate),
        reg_loss_type=s.text("reg_loss_type", d.reg_loss_type),
        ratio_r_neq_t_range=s.numbers("ratio_r_neq_t_range", d.ratio_r_neq_t_range),
        noise_cond_prob_range=s.numbers("noise_cond_prob_range", d.noise_cond_prob_range),
        noise_cond_scale=s.number("noise_cond_scale", d.noise_cond_scale),
    )
    s.finish()
    return config
