"""(Spec, HardwareFacts, Profile, ModelFacts) -> EnginePlan; pure but for `prepare`, which finds the four.

Nothing is imported here: the engine reads plans (`plan.types`) and must not load what makes them.
"""
